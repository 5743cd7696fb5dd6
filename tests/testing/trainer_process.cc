// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/trainer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/run_folder.h"

namespace capstan {
namespace {

constexpr int kPollMicroseconds = 2000;
// For killed processes to vanish.
constexpr double kGoneSeconds = 10.0;

double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

struct Origin {
  pid_t parent = -1;    // -1: the process is gone
  int64_t started = 0;  // in ticks
};

// By /proc.
Origin OriginOf(pid_t pid) {
  Origin origin;
  std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(stat, line)) return origin;
  // PID (NAME) STATE PARENT ..; the name may hold anything. The start is the
  // 22nd field, the 18th after the parent.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  fields >> field >> origin.parent;
  for (int i = 0; i < 17; ++i) fields >> field;
  fields >> origin.started;
  return origin;
}

}  // namespace

TrainerProcess::TrainerProcess(const std::vector<std::string>& args,
                               const TrainerOptions& options)
    : options_(options) {
  const std::string own = NewTestFolder("trainer");
  out_path_ = own + "/stdout";
  err_path_ = own + "/stderr";
  in_path_ = own + "/stdin";
  WriteText(in_path_, options_.input);
  // There from the start, for Out and Err.
  WriteText(out_path_, "");
  WriteText(err_path_, "");
  if (options_.folder.empty()) options_.folder = own;
  if (options_.binary.empty()) options_.binary = Runfile("trainer/trainer");
  // Every process that descends from the trainer inherits the write end, so
  // the read end sees the end of the file when the last of them is gone.
  int ends[2];
  if (pipe(ends) != 0) abort();
  alive_fd_ = ends[0];
  fcntl(alive_fd_, F_SETFD, FD_CLOEXEC);
  start_ = Now();
  pid_ = fork();
  if (pid_ == 0) BecomeTrainer(args);
  close(ends[1]);
}

void TrainerProcess::BecomeTrainer(const std::vector<std::string>& args) const {
  // The test's kill of its own group must not be needed, nor reach others.
  setpgid(0, 0);
  const int out = open(out_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err = open(err_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int in = open(in_path_.c_str(), O_RDONLY);
  if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0 ||
      chdir(options_.folder.c_str()) != 0) {
    _exit(125);
  }
  for (int fd : {in, out, err}) close(fd);
  for (const auto& [what, most] : options_.limits) {
    const rlimit both = {most, most};
    setrlimit(static_cast<__rlimit_resource>(what), &both);
  }
  if (options_.ignores_children) signal(SIGCHLD, SIG_IGN);
  std::map<std::string, std::string> environment = {{"PATH", "/usr/bin:/bin"},
                                                    {"HOME", options_.folder},
                                                    {"OMP_NUM_THREADS", "1"}};
  for (const auto& [name, value] : options_.environment) {
    environment[name] = value;
  }
  std::vector<std::string> texts;
  for (const auto& [name, value] : environment) {
    texts.push_back(absl::StrCat(name, "=", value));
  }
  std::vector<char*> envp;
  for (std::string& text : texts) envp.push_back(&text[0]);
  envp.push_back(nullptr);
  std::vector<std::string> words = {options_.binary};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(&word[0]);
  argv.push_back(nullptr);
  execve(options_.binary.c_str(), argv.data(), envp.data());
  _exit(126);
}

TrainerProcess::~TrainerProcess() {
  if (!exited_) {
    for (pid_t child : Children()) kill(child, SIGKILL);
    Signal(SIGKILL);
    waitpid(pid_, &wait_status_, 0);
  }
  close(alive_fd_);
}

std::vector<pid_t> TrainerProcess::Children() const {
  // Numbers of processes begin anew some time.
  std::vector<std::pair<int64_t, pid_t>> by_start;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    const Origin origin = OriginOf(pid);
    if (origin.parent == pid_) by_start.emplace_back(origin.started, pid);
  }
  std::sort(by_start.begin(), by_start.end());
  std::vector<pid_t> children;
  for (const auto& [started, pid] : by_start) children.push_back(pid);
  return children;
}

bool TrainerProcess::Running() {
  if (!exited_ && waitpid(pid_, &wait_status_, WNOHANG) == pid_) {
    exited_ = true;
    end_ = Now();
  }
  return !exited_;
}

void TrainerProcess::Signal(int signal) const { kill(pid_, signal); }

double TrainerProcess::Seconds() const { return Now() - start_; }

bool TrainerProcess::TimedOut() const { return Seconds() > options_.timeout; }

std::string TrainerProcess::Out() const { return ReadText(out_path_); }

std::string TrainerProcess::Err() const { return ReadText(err_path_); }

bool TrainerProcess::WaitUntil(const std::function<bool()>& there) {
  while (!there()) {
    if (!Running() || TimedOut()) return false;
    // sleeps: polls
    usleep(kPollMicroseconds);
  }
  return true;
}

bool TrainerProcess::WaitForFile(const std::string& path) {
  return WaitUntil([&path] { return std::filesystem::exists(path); });
}

bool TrainerProcess::AllGone(double seconds) const {
  pollfd alive = {alive_fd_, 0, 0};
  return poll(&alive, 1, static_cast<int>(seconds * 1000)) == 1 &&
         (alive.revents & POLLHUP) != 0;
}

TrainerResult TrainerProcess::Wait() {
  TrainerResult result;
  while (Running()) {
    if (TimedOut()) {
      result.timed_out = true;
      for (pid_t child : Children()) kill(child, SIGKILL);
      Signal(SIGKILL);
      waitpid(pid_, &wait_status_, 0);
      exited_ = true;
      end_ = Now();
      break;
    }
    // sleeps: polls
    usleep(kPollMicroseconds);
  }
  result.all_gone = AllGone(kGoneSeconds);
  if (WIFEXITED(wait_status_)) result.exit_code = WEXITSTATUS(wait_status_);
  if (WIFSIGNALED(wait_status_)) result.term_signal = WTERMSIG(wait_status_);
  result.seconds = end_ - start_;
  result.out = ReadText(out_path_);
  result.err = ReadText(err_path_);
  return result;
}

TrainerResult RunTrainer(const std::vector<std::string>& args,
                         const TrainerOptions& options) {
  return TrainerProcess(args, options).Wait();
}

}  // namespace capstan
