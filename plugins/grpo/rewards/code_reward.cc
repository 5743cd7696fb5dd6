// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/sandbox.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "plugins/grpo/rewards/block.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/grpo/rewards/row_field.h"
#include "plugins/grpo/rewards/sandbox_watch.h"
#include "plugins/grpo/rewards/swept_folder.h"
#include "plugins/sdk/lib/field_check.h"

namespace capstan::grpo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kDefaultCpuSeconds = 5;
constexpr int64_t kDefaultMemoryMib = 2048;
constexpr int64_t kDefaultParallel = 2;
constexpr char kDefaultPrint[] = "print(\"{}\")";
// A program that computes may wait for others.
constexpr double kWallPerCpu = 4.0;
// Of what a test prints, and of each file that it writes.
constexpr int64_t kMostOutputBytes = int64_t{16} << 20;
// Of all of them.
constexpr int64_t kMostFolderBytes = int64_t{64} << 20;

struct Test {
  std::string source;  // behind the code
  std::string input;
  absl::optional<std::string> output;  // unset: it comes to its end
};

// The program's file: of those in PATH the first that is no script, as scripts
// start programs, which the sandbox forbids.
absl::StatusOr<std::string> FileOf(const std::string& program) {
  if (absl::StrContains(program, '/')) {
    return fs::absolute(program).lexically_normal().string();
  }
  const char* const path = getenv("PATH");
  for (const absl::string_view folder :
       absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    const std::string file = absl::StrCat(folder, "/", program);
    if (access(file.c_str(), X_OK) != 0 || !IsRegularFile(file)) continue;
    char begin[2] = {};
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t size = fd < 0 ? 0 : read(fd, begin, sizeof(begin));
    if (fd >= 0) close(fd);
    if (size == 2 && !(begin[0] == '#' && begin[1] == '!')) return file;
  }
  return absl::NotFoundError(
      absl::StrCat("there is no ", program,
                   " in PATH that isn't a script; name the file of "
                   "one in interpreter"));
}

// Nothing of this process's environment but where programs and libraries are.
std::vector<std::string> Environment(const std::string& folder) {
  std::vector<std::string> variables;
  for (char** old = environ; old != nullptr && *old != nullptr; ++old) {
    const absl::string_view all = *old;
    const absl::string_view name = all.substr(0, all.find('='));
    if (name != "PATH" && name != "LD_LIBRARY_PATH" && name != "LANG" &&
        !absl::StartsWith(name, "LC_")) {
      variables.emplace_back(name);
    }
  }
  for (const char* const name : {"HOME=", "TMPDIR="}) {
    variables.push_back(absl::StrCat(name, folder));
  }
  // The same at each run.
  variables.insert(variables.end(),
                   {"PYTHONHASHSEED=0", "PYTHONNOUSERSITE=1",
                    "PYTHONSAFEPATH=1", "PYTHONDONTWRITEBYTECODE=1",
                    "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"});
  return variables;
}

// Lines without white space at their ends, and none that are empty at the end.
std::vector<std::string> LinesOf(absl::string_view text) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    lines.emplace_back(absl::StripTrailingAsciiWhitespace(line));
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

// Doesn't wait for the disk, as Close would: the file is gone soon.
absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  CAPSTAN_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Open(path, OutputFile::Start::kNew));
  return file.Append(bytes);
}

// A test's own, removed with all that is in it.
class TestFolder {
 public:
  explicit TestFolder(std::string path) : path_(std::move(path)) {
    if (mkdir(path_.c_str(), 0700) != 0) status_ = WriteError(path_, errno);
  }
  ~TestFolder() {
    try {
      RemoveTree(path_).IgnoreError();
    } catch (const std::bad_alloc&) {  // goes with the folder that it is in
    }
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  const absl::Status& status() const { return status_; }

 private:
  const std::string path_;
  absl::Status status_;
};

// What no code can print by chance.
std::string NewWord() {
  std::random_device random;
  return absl::StrCat("end-", absl::Hex(random(), absl::kZeroPad8),
                      absl::Hex(random(), absl::kZeroPad8),
                      absl::Hex(random(), absl::kZeroPad8));
}

class CodeReward final : public RewardFunction {
 public:
  explicit CodeReward(const Code& config)
      : config_(config),
        field_(config.has_field() ? config.field() : "tests"),
        print_(config.has_print() ? config.print() : kDefaultPrint),
        words_(config.interpreter().begin(), config.interpreter().end()) {
    if (words_.empty()) words_ = {"python3"};
    sandbox_.cpu_seconds =
        config.has_cpu_seconds() ? config.cpu_seconds() : kDefaultCpuSeconds;
    sandbox_.bytes =
        (config.has_memory_mib() ? config.memory_mib() : kDefaultMemoryMib)
        << 20;
    sandbox_.file_bytes = kMostOutputBytes;
  }

  absl::Status CheckRow(absl::string_view row) const override {
    return TestsOf(row).status();
  }

  absl::StatusOr<std::vector<double>> Score(
      absl::Span<const Answer> answers) override {
    if (answers.empty()) return std::vector<double>();
    CAPSTAN_RETURN_IF_ERROR(CheckInterpreter());
    std::vector<absl::StatusOr<double>> values(answers.size(), 0.0);
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i; (i = next++) < answers.size();) {
        values[i] = ScoreOne(answers[i]);
      }
    };
    const size_t parallel = static_cast<size_t>(
        config_.has_parallel() ? config_.parallel() : kDefaultParallel);
    std::vector<std::thread> threads;
    while (threads.size() + 1 < std::min(parallel, answers.size())) {
      threads.emplace_back(work);
    }
    work();
    for (std::thread& thread : threads) thread.join();
    std::vector<double> scores;
    for (const absl::StatusOr<double>& value : values) {
      if (!value.ok()) return value.status();
      scores.push_back(*value);
    }
    return scores;
  }

 private:
  // None: the field is null.
  absl::StatusOr<std::vector<Test>> TestsOf(absl::string_view row) const {
    CAPSTAN_ASSIGN_OR_RETURN(Json value, RowField(row, field_));
    std::vector<Test> tests;
    if (value.is_null()) return tests;
    if (!value.is_array()) value = Json::array({value});
    for (const Json& item : value) {
      Test test;
      if (item.is_string()) {
        test.source = item.get<std::string>();
      } else if (item.is_object() && item.contains("output")) {
        if (item.contains("input")) test.input = TextOf(item["input"]);
        test.output = TextOf(item["output"]);
      } else {
        return absl::InvalidArgumentError(absl::StrCat(
            "the row's field \"", field_, "\" has ", Quoted(TextOf(item)),
            ", which is neither a text nor {\"input\": .., \"output\": ..}"));
      }
      tests.push_back(std::move(test));
    }
    if (!tests.empty()) return tests;
    return absl::InvalidArgumentError(
        absl::StrCat("the row's field \"", field_, "\" has no tests"));
  }

  // Unless the interpreter works, every answer would get 0 for it.
  absl::Status CheckInterpreter() {
    if (checked_) return absl::OkStatus();
    CAPSTAN_ASSIGN_OR_RETURN(words_[0], FileOf(words_[0]));
    if (scratch_ == nullptr) {
      CAPSTAN_ASSIGN_OR_RETURN(scratch_, SweptFolder::Create());
    }
    std::string printed;
    CAPSTAN_ASSIGN_OR_RETURN(const bool passes, Passes("", {}, &printed));
    if (!passes) {
      return absl::FailedPreconditionError(absl::StrCat(
          words_[0], " doesn't run in the sandbox, or not to the end of `",
          print_, "`: ", Quoted(printed)));
    }
    checked_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<double> ScoreOne(const Answer& answer) const {
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Test> tests,
                             TestsOf(answer.row));
    if (tests.empty()) return std::nan("");
    const absl::string_view code = LastBlock(answer.text);
    int64_t passed = 0;
    for (const Test& test : tests) {
      CAPSTAN_ASSIGN_OR_RETURN(const bool passes, Passes(code, test, nullptr));
      if (passes) {
        ++passed;
      } else if (config_.all_or_nothing()) {
        return 0.0;
      }
    }
    return static_cast<double>(passed) / static_cast<double>(tests.size());
  }

  // Runs one test. An error is this machine's, not the code's. *errors, which
  // may be null, gets what it prints to standard error, too.
  absl::StatusOr<bool> Passes(absl::string_view code, const Test& test,
                              std::string* errors) const {
    const TestFolder folder(absl::StrCat(scratch_->path(), "/", begun_++));
    CAPSTAN_RETURN_IF_ERROR(folder.status());
    const std::string word = NewWord();
    std::string source = absl::StrCat(code, "\n", test.source, "\n");
    if (!test.output.has_value()) {
      absl::StrAppend(&source, absl::StrReplaceAll(print_, {{"{}", word}}),
                      "\n");
    }
    CAPSTAN_RETURN_IF_ERROR(
        WriteFile(absl::StrCat(folder.path(), "/code"), source));
    const auto given_bytes =
        static_cast<int64_t>(source.size() + test.input.size());
    const std::string input = absl::StrCat(folder.path(), "/input");
    CAPSTAN_RETURN_IF_ERROR(WriteFile(input, test.input));
    const int in = open(input.c_str(), O_RDONLY | O_CLOEXEC);
    // Its name may become another file's.
    const std::string output = absl::StrCat(folder.path(), "/output");
    const int out =
        open(output.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    absl::StatusOr<ChildEnd> end =
        in < 0 || out < 0
            ? WriteError(in < 0 ? input : output, errno)
            : Run(folder.path(), given_bytes, in, out, errors != nullptr);
    const std::string printed = end.ok() ? Printed(out) : "";
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    CAPSTAN_RETURN_IF_ERROR(end.status());
    if (errors != nullptr) *errors = printed;
    if (!end->ok()) return false;
    const std::vector<std::string> lines = LinesOf(printed);
    return test.output.has_value() ? lines == LinesOf(*test.output)
                                   : !lines.empty() && lines.back() == word;
  }

  // `given_bytes`: of the files that are in the folder.
  absl::StatusOr<ChildEnd> Run(const std::string& folder, int64_t given_bytes,
                               int in, int out, bool with_errors) const {
    ::capstan::Program program;
    program.words = words_;
    program.words.push_back(absl::StrCat(folder, "/code"));
    program.variables = Environment(folder);
    program.input = in;
    program.output = out;
    program.errors = with_errors ? out : ::capstan::Program::kNull;
    program.dies_with_parent = true;
    program.sandbox = sandbox_;
    program.sandbox->folder = folder;
    CAPSTAN_ASSIGN_OR_RETURN(const pid_t child, StartProgram(program));
    WatchedLimits limits;
    limits.seconds = kWallPerCpu * static_cast<double>(sandbox_.cpu_seconds);
    limits.folder_bytes = given_bytes + kMostFolderBytes;
    return WatchSandbox(child, folder, limits);
  }

  // The file's bytes, of which its limit allows no more.
  static std::string Printed(int fd) {
    std::string printed;
    char buffer[1 << 14];
    for (ssize_t size;
         (size = pread(fd, buffer, sizeof(buffer),
                       static_cast<off_t>(printed.size()))) > 0;) {
      printed.append(buffer, static_cast<size_t>(size));
    }
    return printed;
  }

  const Code config_;
  const std::string field_;
  const std::string print_;
  std::vector<std::string> words_;
  Sandbox sandbox_;
  bool checked_ = false;
  // Of all tests; null before the first Score. The thread that scores may not
  // live to remove anything: a run that is stopped doesn't wait for it.
  std::unique_ptr<SweptFolder> scratch_;
  mutable std::atomic<int64_t> begun_{0};  // tests
};

}  // namespace

MadeReward NewCode(const Code& config) {
  if (config.has_field() && config.field().empty()) {
    return FieldError("field", "must name a field of the rows");
  }
  if (config.has_print() && !absl::StrContains(config.print(), "{}")) {
    return FieldError("print", "must contain {}");
  }
  const auto positive = [](bool set, const char* field, int64_t value) {
    return set ? CheckField(value > 0 && value < (int64_t{1} << 30), field,
                            "greater than 0", value)
               : absl::OkStatus();
  };
  CAPSTAN_RETURN_IF_ERROR(
      positive(config.has_cpu_seconds(), "cpu_seconds", config.cpu_seconds()));
  CAPSTAN_RETURN_IF_ERROR(
      positive(config.has_memory_mib(), "memory_mib", config.memory_mib()));
  CAPSTAN_RETURN_IF_ERROR(
      positive(config.has_parallel(), "parallel", config.parallel()));
  return std::make_unique<CodeReward>(config);
}

}  // namespace capstan::grpo
