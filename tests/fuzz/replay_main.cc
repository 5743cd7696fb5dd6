// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target without libFuzzer: on each file of its corpus, then on
// mutations of them.
//
//   TARGET FOLDER_OR_FILE.. [--seconds=N] [--seed=N]
//
// A crash, more than kMostSeconds for one input or more than kMostBytes of
// memory ends the process with 1, after the input has been written to the
// test's outputs ($TEST_UNDECLARED_OUTPUTS_DIR, or the current folder).
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc,
                                                          char*** argv);

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Of real time, since a hang need not compute: far beyond what any input takes
// on a machine with other work.
constexpr int kMostSeconds = 20;
// Beyond what the process has mapped when it starts.
constexpr rlim_t kMostBytes = rlim_t{2} << 30;
constexpr size_t kLongestInput = 64 << 10;

// The input that is being run, for the signal handler.
std::string current;
std::string current_name;
std::string failing_path;

void Say(const char* text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(2);
}

// Only async-signal-safe calls.
void OnFailure(int signal) {
  Say("\nFAILED: ");
  Say(signal == SIGALRM   ? "a hang (or more than 20 s)"
      : signal == SIGABRT ? "an abort: a CHECK, an exception, out of memory"
      : signal == SIGSEGV ? "a bad memory access, or no stack left"
                          : "a deadly signal");
  Say(" for ");
  Say(current_name.c_str());
  const int fd = open(failing_path.c_str(),
                      O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const bool written = fd >= 0 && write(fd, current.data(), current.size()) ==
                                      static_cast<ssize_t>(current.size());
  Say(written ? "; the input is in " : "; the input can't be written to ");
  Say(failing_path.c_str());
  Say("\n");
  _exit(1);
}

void CatchFailures() {
  // A stack of its own: SIGSEGV may mean that there is none left.
  static char stack[64 << 10];
  const stack_t alternate = {stack, 0, sizeof(stack)};
  sigaltstack(&alternate, nullptr);
  struct sigaction action = {};
  action.sa_handler = OnFailure;
  action.sa_flags = SA_ONSTACK;
  for (int signal :
       {SIGABRT, SIGALRM, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP}) {
    sigaction(signal, &action, nullptr);
  }
}

void LimitMemory() {
#ifndef __SANITIZE_ADDRESS__  // which maps terabytes
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t most =
      pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kMostBytes;
  const rlimit limit = {most, most};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

void Run(std::string input, std::string name) {
  current = std::move(input);
  current_name = std::move(name);
  const itimerval limit = {{0, 0}, {kMostSeconds, 0}};
  setitimer(ITIMER_REAL, &limit, nullptr);
  // A copy of the exact size: a sanitizer sees a read behind its end.
  const std::vector<uint8_t> bytes(current.begin(), current.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  const itimerval none = {};
  setitimer(ITIMER_REAL, &none, nullptr);
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& corpus, uint64_t seed)
      : corpus_(corpus), random_(seed) {}

  std::string Next() {
    std::string input = corpus_[Below(corpus_.size())];
    for (size_t n = 1 + Below(6); n > 0; --n) Change(&input);
    if (input.size() > kLongestInput) input.resize(kLongestInput);
    return input;
  }

 private:
  // Uniform enough; below 1 for 0.
  size_t Below(size_t n) { return n == 0 ? 0 : random_() % n; }

  void Change(std::string* input) {
    const size_t at = Below(input->size() + 1);
    const size_t length = Below(std::min<size_t>(input->size() - at, 32) + 1);
    switch (Below(9)) {
      case 0:  // a bit
        if (at < input->size()) (*input)[at] ^= 1 << Below(8);
        return;
      case 1:  // a byte
        if (at < input->size()) (*input)[at] = static_cast<char>(random_());
        return;
      case 2:
        input->erase(at, length);
        return;
      case 3:  // twice, or many times, which nests brackets
        input->insert(at, Repeated(input->substr(at, length)));
        return;
      case 4:
        input->insert(at, Number());
        return;
      case 5:
        input->replace(at, length, Number());
        return;
      case 6:  // a number in binary
        return Overwrite(input, at);
      case 7:
        input->resize(at);
        return;
      default:  // of another input, or of this one
        const std::string& other = corpus_[Below(corpus_.size())];
        const size_t from = Below(other.size() + 1);
        input->insert(at, other.substr(from, Below(64)));
        return;
    }
  }

  std::string Repeated(const std::string& piece) {
    const size_t times = Below(8) == 0 ? Below(2000) : 1;
    std::string text;
    for (size_t i = 0; i < times && text.size() < kLongestInput; ++i) {
      text += piece;
    }
    return text;
  }

  std::string Number() {
    static constexpr const char* kNumbers[] = {
        "-1",
        "0",
        "1",
        "255",
        "65536",
        "2147483647",
        "2147483648",
        "4294967296",
        "1e99",
        "nan",
        "null",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
    };
    return kNumbers[Below(std::size(kNumbers))];
  }

  void Overwrite(std::string* input, size_t at) {
    static constexpr uint64_t kNumbers[] = {
        0,
        1,
        0x7f,
        0xff,
        0x7fff,
        0xffff,
        0x7fffffff,
        0xffffffff,
        uint64_t{1} << 32,
        ~uint64_t{0} >> 1,
        ~uint64_t{0},
        uint64_t{1} << 61,
        uint64_t{1} << 63,
    };
    const uint64_t number = kNumbers[Below(std::size(kNumbers))] + Below(3) - 1;
    const size_t width = size_t{1} << Below(4);
    if (input->size() - at < width) return;
    memcpy(&(*input)[at], &number, width);  // of a little-endian machine
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;
};

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The files of a folder, or the file, by name.
std::vector<fs::path> FilesOf(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file(error)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 2.0;
  uint64_t seed = 1;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--seconds=", 0) == 0) {
      seconds = atof(argument.c_str() + strlen("--seconds="));
    } else if (argument.rfind("--seed=", 0) == 0) {
      seed = strtoull(argument.c_str() + strlen("--seed="), nullptr, 10);
    } else {
      const std::vector<fs::path> found = FilesOf(argument);
      files.insert(files.end(), found.begin(), found.end());
    }
  }
  if (files.empty()) {
    fprintf(stderr, "there is no corpus: make its first file by hand\n");
    return 1;
  }
  const char* const outputs = getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  failing_path = std::string(outputs == nullptr ? "." : outputs) + "/failing-" +
                 fs::path(argv[0]).filename().string();
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&argc, &argv);
  LimitMemory();
  CatchFailures();

  std::vector<std::string> corpus;
  for (const fs::path& file : files) {
    corpus.push_back(ReadFile(file));
    Run(corpus.back(), file.string());
  }
  Mutator mutator(corpus, seed);
  int64_t mutations = 0;
  double longest = 0.0;
  const auto begin = Clock::now();
  for (auto now = begin;
       std::chrono::duration<double>(now - begin).count() < seconds;) {
    ++mutations;
    Run(mutator.Next(), "mutation " + std::to_string(mutations) + " of seed " +
                            std::to_string(seed));
    const auto end = Clock::now();
    longest =
        std::max(longest, std::chrono::duration<double>(end - now).count());
    now = end;
  }
  printf("%zu files, %lld mutations, the longest took %.3f s\n", files.size(),
         static_cast<long long>(mutations), longest);
  return 0;
}
