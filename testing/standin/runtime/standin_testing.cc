// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/standin_testing.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "testing/standin/device.h"

namespace capstan::standin {
namespace {

namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

fs::path FreshFolder() {
  const char* const base = std::getenv("TEST_TMPDIR");
  std::string path =
      std::string(base == nullptr ? "/tmp" : base) + "/standin.XXXXXX";
  return mkdtemp(path.data());
}

}  // namespace

int Outcome::Count(const std::string& text) const {
  std::istringstream lines(report);
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(text) != std::string::npos) ++count;
  }
  return count;
}

std::string Outcome::Findings() const {
  const std::string key = "{\"finding\": \"";
  std::istringstream lines(report);
  std::string kinds;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const size_t end = line.find('"', key.size());
    kinds +=
        (kinds.empty() ? "" : " ") + line.substr(key.size(), end - key.size());
  }
  return kinds;
}

Outcome RunOnStandin(const std::string& settings,
                     const std::function<void()>& body) {
  const fs::path folder = FreshFolder();
  const fs::path output = folder / "output";
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int file = open(output.c_str(), O_WRONLY | O_CREAT, 0644);
    dup2(file, 1);
    dup2(file, 2);
    setenv(
        "CAPSTAN_STANDIN",
        (settings + ",report=" + folder.string() + ",trace=" + folder.string())
            .c_str(),
        1);
    alarm(60);
    body();
    std::fflush(nullptr);
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  Outcome outcome;
  outcome.status =
      WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  outcome.output = Read(output);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "output") continue;
    if (name.find(".trace.") != std::string::npos) {
      outcome.trace += Read(entry.path());
    } else {
      outcome.report += Read(entry.path());
    }
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return outcome;
}

void Check(bool holds, const char* what, const char* file, int line) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
  std::_Exit(1);
}

const std::vector<std::string>& Orders() {
  static const auto* const orders = new std::vector<std::string>{
      "order=late", "order=eager", "order=random:1", "order=random:2"};
  return *orders;
}

float* DeviceFloats(int64_t n) {
  void* p = nullptr;
  CAPSTAN_CHECK_CUDA(cudaMalloc(&p, sizeof(float) * n));
  return static_cast<float*>(p);
}

float* PinnedFloats(int64_t n) {
  void* p = nullptr;
  CAPSTAN_CHECK_CUDA(cudaHostAlloc(&p, sizeof(float) * n, 0));
  return static_cast<float*>(p);
}

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  CAPSTAN_CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

cudaEvent_t NewEvent() {
  cudaEvent_t event = nullptr;
  CAPSTAN_CHECK_CUDA(cudaEventCreate(&event));
  return event;
}

void Add(const char* name, float* to, const float* from, int64_t n, float more,
         cudaStream_t stream) {
  const auto bytes = static_cast<int64_t>(sizeof(float)) * n;
  Work work;
  work.name = name;
  work.reads = {{from, bytes}};
  work.writes = {{to, bytes}};
  work.cost.flops = static_cast<double>(n);
  work.cost.bytes_read = bytes;
  work.cost.bytes_written = bytes;
  work.run = [=] {
    auto* const target = static_cast<float*>(HostView(to));
    const auto* const source = static_cast<const float*>(HostView(from));
    for (int64_t i = 0; i < n; ++i) target[i] = source[i] + more;
    return Progress::kDone;
  };
  CAPSTAN_CHECK_CUDA(static_cast<cudaError_t>(Enqueue(stream, work)));
}

float Value(const float* p, cudaStream_t stream) {
  float value = 0;
  CAPSTAN_CHECK_CUDA(cudaMemcpyAsync(&value, p, sizeof(value),
                                     cudaMemcpyDeviceToHost, stream));
  return value;
}

}  // namespace capstan::standin
