// SPDX-License-Identifier: Apache-2.0
//
// The trainer's program as a user runs it, for tests.
#ifndef CAPSTAN_TESTS_TESTING_TRAINER_PROCESS_H_
#define CAPSTAN_TESTS_TESTING_TRAINER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace capstan {

struct TrainerOptions {
  // Beside PATH, HOME and OMP_NUM_THREADS=1; the test's own environment is not
  // passed on.
  std::map<std::string, std::string> environment;
  // What it reads from standard input, a file.
  std::string input;
  // Where it runs; default: a folder of its own.
  std::string folder;
  // Killed after that many seconds: far more than any run of a test needs, on
  // a machine that has other things to do, too.
  double timeout = 150.0;
  // Of setrlimit: RLIMIT_FSIZE and its number; soft and hard.
  std::map<int, uint64_t> limits;
  // It ignores SIGCHLD at its start, as what some programs start does.
  bool ignores_children = false;
  std::string binary;  // default: the trainer among the test's runfiles
};

struct TrainerResult {
  int exit_code = -1;   // -1 when a signal ended it
  int term_signal = 0;  // which one
  bool timed_out = false;
  std::string out;
  std::string err;
  double seconds = 0.0;  // from start to exit
  // Whether every process that it started was gone soon after its exit.
  bool all_gone = false;
};

// A trainer that runs, with the processes that it has forked. The destructor
// kills what is left.
class TrainerProcess {
 public:
  explicit TrainerProcess(const std::vector<std::string>& args,
                          const TrainerOptions& options = {});
  ~TrainerProcess();
  TrainerProcess(const TrainerProcess&) = delete;
  TrainerProcess& operator=(const TrainerProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Its direct children in the order of their start: the ranks, by number.
  std::vector<pid_t> Children() const;
  bool Running();
  // Since its start.
  double Seconds() const;
  void Signal(int signal) const;
  // What it has written so far.
  std::string Out() const;
  std::string Err() const;
  // Waits until `there` or that `path` exists; false if the trainer ends
  // before, or has no time left.
  bool WaitUntil(const std::function<bool()>& there);
  bool WaitForFile(const std::string& path);
  // Waits for the end. Once.
  TrainerResult Wait();

 private:
  [[noreturn]] void BecomeTrainer(const std::vector<std::string>& args) const;
  bool TimedOut() const;
  // Whether all processes that hold the pipe `alive_fd_` are gone.
  bool AllGone(double seconds) const;

  TrainerOptions options_;
  std::string out_path_;
  std::string err_path_;
  std::string in_path_;
  double start_ = 0.0;
  pid_t pid_ = -1;
  int alive_fd_ = -1;
  bool exited_ = false;
  int wait_status_ = 0;
  double end_ = 0.0;
};

// Runs the trainer to its end.
TrainerResult RunTrainer(const std::vector<std::string>& args,
                         const TrainerOptions& options = {});

}  // namespace capstan

#endif  // CAPSTAN_TESTS_TESTING_TRAINER_PROCESS_H_
