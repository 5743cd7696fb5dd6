// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/comm/create.h"
#include "cluster/launch/launcher.h"

namespace capstan {
namespace conformance {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kBegin = 'B';
constexpr char kValues = 'V';
constexpr char kProblem = 'P';
constexpr char kError = 'E';
constexpr char kDone = 'D';

std::string ReportPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/rank-", rank);
}

absl::Status RankMain(const RankInfo& info, const std::string& folder,
                      const RankFunction& function) {
  at::set_num_threads(1);
  RankReport report(ReportPath(folder, info.rank));
  absl::Status status;
  try {
    absl::StatusOr<std::unique_ptr<ProcessGroup>> group =
        CreateProcessGroup(info, /*gpus=*/0);
    status = group.status();
    if (status.ok()) status = function(group->get(), &report);
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  if (status.ok()) {
    report.Done();
  } else {
    report.Error(status.message());
  }
  return status;
}

// A process that launches the ranks, and kills them if it is killed.
pid_t StartWorld(int world, const std::string& folder,
                 const RankFunction& function) {
  fflush(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(LaunchRanks(world, [&](const RankInfo& info) {
    return RankMain(info, folder, function);
  }));
}

uintmax_t BytesReported(int world, const std::string& folder) {
  uintmax_t bytes = 0;
  for (int rank = 0; rank < world; ++rank) {
    std::error_code error;
    const uintmax_t size =
        std::filesystem::file_size(ReportPath(folder, rank), error);
    if (!error) bytes += size;
  }
  return bytes;
}

// Whether it ended by itself; `exit_code` is then the launcher's.
bool WaitWhileBusy(pid_t pid, int world, const std::string& folder,
                   double silence, int* exit_code) {
  uintmax_t bytes = 0;
  Clock::time_point last = Clock::now();
  while (true) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == pid) {
      *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      return true;
    }
    const uintmax_t now = BytesReported(world, folder);
    if (now != bytes) last = Clock::now();
    bytes = now;
    if (Clock::now() - last > std::chrono::duration<double>(silence)) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return false;
    }
    // sleeps: polls
    usleep(2000);
  }
}

// Removes `size` bytes from the front of `text`; false if there are fewer.
bool Take(absl::string_view* text, size_t size, absl::string_view* out) {
  if (text->size() < size) return false;
  *out = text->substr(0, size);
  text->remove_prefix(size);
  return true;
}

bool TakeText(absl::string_view* text, absl::string_view* out) {
  absl::string_view bytes;
  uint64_t size = 0;
  if (!Take(text, sizeof(size), &bytes)) return false;
  std::memcpy(&size, bytes.data(), sizeof(size));
  return Take(text, size, out);
}

// The last record may be truncated if a rank was killed.
RankResult ReadReport(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  const std::string bytes = content.str();
  absl::string_view left = bytes;
  RankResult result;
  absl::string_view kind, key, payload;
  while (Take(&left, 1, &kind) && TakeText(&left, &key) &&
         TakeText(&left, &payload)) {
    if (kind[0] == kBegin) result.busy_with = std::string(key);
    if (kind[0] == kError) result.error = std::string(payload);
    if (kind[0] == kDone) result.done = true;
    if (kind[0] == kProblem) {
      result.problems.emplace(std::string(key), std::string(payload));
    }
    if (kind[0] == kValues) {
      std::vector<double> values(payload.size() / sizeof(double));
      std::memcpy(values.data(), payload.data(), payload.size());
      result.values[std::string(key)].push_back(std::move(values));
    }
  }
  return result;
}

std::string DescribeFailure(const WorldResult& result, bool ended,
                            double silence, int exit_code) {
  std::string text = ended ? absl::StrCat("exit code ", exit_code)
                           : absl::StrCat("killed: no rank has reported ",
                                          "anything for ", silence, " s");
  for (size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const RankResult& r = result.ranks[rank];
    absl::StrAppend(&text, "\n  rank ", rank, ": ",
                    r.done ? "done" : absl::StrCat("in ", r.busy_with),
                    r.error.empty() ? "" : ": ", r.error);
  }
  return text;
}

}  // namespace

RankReport::RankReport(const std::string& path)
    : file_(std::fopen(path.c_str(), "ab")) {
  if (file_ == nullptr) {
    throw std::runtime_error(absl::StrCat("can't write ", path));
  }
}

RankReport::~RankReport() { std::fclose(file_); }

void RankReport::Begin(const std::string& what) { Write(kBegin, what, ""); }

void RankReport::Add(const std::string& key,
                     const std::vector<double>& values) {
  Write(kValues, key,
        absl::string_view(reinterpret_cast<const char*>(values.data()),
                          values.size() * sizeof(double)));
}

void RankReport::Problem(const std::string& topic, const std::string& text) {
  Write(kProblem, topic, text);
}

void RankReport::Error(absl::string_view text) { Write(kError, "", text); }

void RankReport::Done() { Write(kDone, "", ""); }

void RankReport::Write(char kind, absl::string_view key,
                       absl::string_view payload) {
  std::string record(1, kind);
  for (absl::string_view text : {key, payload}) {
    const uint64_t size = text.size();
    record.append(reinterpret_cast<const char*>(&size), sizeof(size));
    record.append(text.data(), text.size());
  }
  std::fwrite(record.data(), 1, record.size(), file_);
  std::fflush(file_);
}

WorldResult RunRanks(int world, double silence, const RankFunction& function) {
  const std::string folder = NewConformanceFolder();
  WorldResult result;
  result.ranks.resize(world);
  const pid_t pid = StartWorld(world, folder, function);
  if (pid < 0) {
    result.failure = "can't fork";
    return result;
  }
  int exit_code = 0;
  const bool ended = WaitWhileBusy(pid, world, folder, silence, &exit_code);
  bool all_done = ended && exit_code == 0;
  for (int rank = 0; rank < world; ++rank) {
    result.ranks[rank] = ReadReport(ReportPath(folder, rank));
    all_done &= result.ranks[rank].done;
  }
  if (!all_done) {
    result.failure = DescribeFailure(result, ended, silence, exit_code);
  }
  return result;
}

namespace {

// Removes them when this process exits, but not when a rank that it has forked
// does.
class MadeFolders {
 public:
  ~MadeFolders() {
    if (getpid() != pid_) return;
    std::error_code error;
    for (const std::string& path : paths_) {
      std::filesystem::remove_all(path, error);
    }
  }
  void Add(const std::string& path) { paths_.push_back(path); }

 private:
  const pid_t pid_ = getpid();
  std::vector<std::string> paths_;
};

}  // namespace

std::string NewConformanceFolder() {
  static MadeFolders made;
  std::string path = ::testing::TempDir() + "/conformance_XXXXXX";
  if (mkdtemp(&path[0]) == nullptr) {
    throw std::runtime_error(absl::StrCat("can't make a folder like ", path));
  }
  made.Add(path);
  return path;
}

}  // namespace conformance
}  // namespace capstan
