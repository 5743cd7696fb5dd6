// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "tests/conformance/command.h"
#include "trainer/commands/command.h"

namespace capstan {
namespace conformance {
namespace {

constexpr unsigned kMostSeconds = 60;  // of a call
constexpr char kName[] = "command";
constexpr char kHelp[] = "The command under test";

// What a command declares of a flag.
class NotedFlag final : public Flag {
 public:
  NotedFlag(std::string name, FlagTarget target)
      : name_(std::move(name)), target_(std::move(target)) {}
  Flag& Type(const char*) override { return *this; }
  Flag& Required() override { return *this; }
  Flag& ShowDefault() override { return *this; }
  Flag& Positive() override { return *this; }
  Flag& Check(std::function<std::string(const std::string&)>) override {
    return *this;
  }
  Flag& OneEach() override { return *this; }
  Flag& Delimiter(char) override { return *this; }

  const std::string& name() const { return name_; }
  // Where its value goes; null if that is a function.
  const void* address() const {
    return std::visit(
        [](const auto& to) -> const void* {
          if constexpr (std::is_pointer_v<std::decay_t<decltype(to)>>) {
            return to;
          } else {
            return nullptr;
          }
        },
        target_);
  }
  bool is_number() const {
    return std::holds_alternative<int*>(target_) ||
           std::holds_alternative<int64_t*>(target_) ||
           std::holds_alternative<uint64_t*>(target_) ||
           std::holds_alternative<double*>(target_) ||
           std::holds_alternative<absl::optional<int64_t>*>(target_) ||
           std::holds_alternative<absl::optional<double>*>(target_);
  }
  bool is_text() const {
    return std::holds_alternative<std::string*>(target_) ||
           std::holds_alternative<absl::optional<std::string>*>(target_);
  }

 private:
  const std::string name_;
  const FlagTarget target_;
};

class NotedFlags final : public Flags {
 public:
  explicit NotedFlags(Command& command) { command.AddFlags(*this); }
  Flag& Add(const char* name, FlagTarget target, const char*) override {
    return flags_.emplace_back(name, std::move(target));
  }
  void AddRunChanges() override {}

  const std::deque<NotedFlag>& all() const { return flags_; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const NotedFlag& flag : flags_) names.push_back(flag.name());
    return names;
  }

 private:
  std::deque<NotedFlag> flags_;
};

// The trainer's, but for training.
class UntrainedHost final : public CommandHost {
 public:
  explicit UntrainedHost(CommandHost* host) : host_(*host) {}
  std::string Path(const std::string& path) const override {
    return host_.Path(path);
  }
  std::string ModelFolder(const std::string& path) const override {
    return host_.ModelFolder(path);
  }
  std::string HubDownloadHint(absl::string_view name,
                              absl::string_view setting) const override {
    return host_.HubDownloadHint(name, setting);
  }
  absl::StatusOr<Ranks> RanksOfRun() const override {
    return host_.RanksOfRun();
  }
  absl::StatusOr<int> Train(const std::string&) override { return 0; }

 private:
  CommandHost& host_;
};

class Untrained final : public Command {
 public:
  explicit Untrained(Command* command) : command_(*command) {}
  void AddFlags(Flags& flags) override { command_.AddFlags(flags); }
  absl::StatusOr<int> Run(CommandHost& host) override {
    UntrainedHost untrained(&host);
    return command_.Run(untrained);
  }

 private:
  Command& command_;
};

// The child's side of Call.
void RunHere(const LoadedPluginUnderTest& plugin,
             const std::vector<std::string>& words, const std::string& out,
             const std::string& err, const std::string& returned) {
  for (const auto& [path, number] :
       {std::pair{out, STDOUT_FILENO}, std::pair{err, STDERR_FILENO}}) {
    const int file = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
    dup2(file, number);
    close(file);
  }
  alarm(kMostSeconds);
  const absl::StatusOr<std::unique_ptr<Command>> command =
      plugin.Create<Command>();
  if (!command.ok()) _exit(1);
  Untrained untrained(command->get());
  std::vector<std::string> all = words;
  all.insert(all.begin(), kName);
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int code = RunProgram(kName, kHelp, untrained,
                              static_cast<int>(all.size()), argv.data());
  std::cout.flush();
  fflush(nullptr);
  WriteWholeFile(returned, "").IgnoreError();
  _exit(code);
}

// Fails unless an error was told in one line, and, if that begins with a flag,
// with one of the command's.
void ExpectOneLine(const std::string& err,
                   const std::vector<std::string>& names) {
  EXPECT_TRUE(absl::StartsWith(err, "ERROR: ") &&
              std::count(err.begin(), err.end(), '\n') == 1)
      << "an error is one line on standard error, not:\n"
      << err;
  absl::string_view text(err);
  absl::ConsumePrefix(&text, "ERROR: ");
  if (!absl::StartsWith(text, "--")) return;
  const absl::string_view name = text.substr(0, text.find_first_of(": "));
  EXPECT_EQ(std::count(names.begin(), names.end(), name), 1)
      << "the error is about " << name << ", which is no flag of the command";
}

TEST_P(CommandConformance, FlagsMayBeAddedTwice) {
  const NotedFlags first(instance()), second(instance());
  EXPECT_EQ(second.names(), first.names())
      << "the second AddFlags adds other flags";
  const std::vector<std::string> names = first.names();
  const std::set<std::string> once(names.begin(), names.end());
  EXPECT_EQ(once.size(), names.size()) << "two flags have one name";
}

TEST_P(CommandConformance, FlagsAreMembersOfTheirObject) {
  const std::unique_ptr<Command> other = New();
  const NotedFlags its(*other), mine(instance());
  ASSERT_EQ(its.names(), mine.names());
  for (size_t i = 0; i < mine.all().size(); ++i) {
    const NotedFlag& flag = mine.all()[i];
    if (flag.address() == nullptr) continue;
    EXPECT_NE(flag.address(), its.all()[i].address())
        << flag.name() << " of two objects is one variable";
  }
}

TEST_P(CommandConformance, HelpNamesEachFlagAndIsAllThatIsPrinted) {
  const Outcome help = Call({"--help"});
  EXPECT_EQ(help.signal, 0);
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "") << "standard error of --help";
  EXPECT_TRUE(absl::StartsWith(help.out, kHelp))
      << "making a command and adding its flags prints nothing, but this "
         "begins its --help:\n"
      << help.out;
  for (const std::string& name : NotedFlags(instance()).names()) {
    EXPECT_TRUE(absl::StrContains(help.out, name)) << name << " has no help";
  }
}

TEST_P(CommandConformance, RunReturnsItsExitCode) {
  const Outcome call = Call(Words());
  EXPECT_EQ(call.signal, 0) << "killed by a signal; " << kMostSeconds
                            << " s are the most that a call may take";
  EXPECT_TRUE(call.returned || call.signal != 0)
      << "Run has ended the process: it is to return the exit code";
  EXPECT_FALSE(absl::StrContains(call.err, "ERROR: "))
      << "the call was to succeed:\n"
      << call.err;
}

// One wrong value at a time: a number of -1, a path where nothing can be.
TEST_P(CommandConformance, AWrongValueIsAnErrorOfOneLineOrNone) {
  const NotedFlags flags(instance());
  for (const NotedFlag& flag : flags.all()) {
    if (!absl::StartsWith(flag.name(), "--")) continue;
    std::vector<std::string> words;
    bool given = false;
    for (const std::string& word : Words()) {
      const bool is_it = absl::StartsWith(word, flag.name() + "=");
      given = given || is_it;
      if (!is_it) words.push_back(word);
    }
    if (!flag.is_number() && !(flag.is_text() && given)) continue;
    words.push_back(
        absl::StrCat(flag.name(), "=", flag.is_number() ? "-1" : "/proc/none"));
    SCOPED_TRACE(words.back());
    const Outcome call = Call(words);
    EXPECT_EQ(call.signal, 0) << "a wrong value kills the command";
    EXPECT_TRUE(call.returned || call.signal != 0)
        << "Run has ended the process: it is to return an error";
    if (call.signal == 0 && (call.exit_code == 1 || call.exit_code == 2)) {
      ExpectOneLine(call.err, flags.names());
    }
  }
}

}  // namespace

CommandConformance::Outcome CommandConformance::Call(
    const std::vector<std::string>& words) const {
  const ScratchFolder files;
  const std::string out = files.path() + "/out", err = files.path() + "/err",
                    returned = files.path() + "/returned";
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) RunHere(plugin(), words, out, err, returned);
  Outcome outcome;
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    ADD_FAILURE() << "no process could be made";
    return outcome;
  }
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  outcome.returned = PathExists(returned);
  outcome.out = ReadWholeFile(out).value_or("");
  outcome.err = ReadWholeFile(err).value_or("");
  return outcome;
}

std::vector<std::string> CommandConformance::Words() const {
  return absl::StrSplit(WithOutput(GetParam(), output()).config, ' ',
                        absl::SkipEmpty());
}

}  // namespace conformance
}  // namespace capstan
