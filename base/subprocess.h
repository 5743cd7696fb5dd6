// SPDX-License-Identifier: Apache-2.0
//
// Starting other programs, and learning how a child ended, be it a program or a
// fork of this one.
#ifndef CAPSTAN_BASE_SUBPROCESS_H_
#define CAPSTAN_BASE_SUBPROCESS_H_

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/sandbox.h"

namespace capstan {

// A pipe whose ends are closed on exec and by the destructor.
class Pipe {
 public:
  Pipe();
  ~Pipe();
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  // If false, errno says why.
  bool ok() const { return ends_[0] >= 0; }
  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  void CloseRead() { Close(0); }
  void CloseWrite() { Close(1); }
  // The caller closes it.
  int ReleaseRead();

 private:
  void Close(int end);
  int ends_[2];  // -1: closed
};

// How a child ended. If the process ignores SIGCHLD, the kernel doesn't keep
// that: then known() is false, and ok(), too.
struct ChildEnd {
  bool ok() const { return code == 0; }
  bool known() const { return code >= 0 || signal > 0; }
  // "exit code 3", "signal 9", "how it ended isn't known"
  std::string Text() const;

  int code = -1;   // of exit; -1: it didn't exit
  int signal = 0;  // that ended it; 0: none
  int64_t cpu_seconds = 0;
};

// Waits for a child. Call once for each, unless the result is nullopt.
ChildEnd WaitFor(pid_t child);
// nullopt: it is still running after so many seconds, which may be 0.
absl::optional<ChildEnd> WaitFor(pid_t child, double limit_seconds);

// fork() of a child that is killed when the calling thread ends, and doesn't
// print what this process has buffered. Negative on error, with errno.
pid_t Fork();

struct Program {
  static constexpr int kNull = -1;

  std::vector<std::string> words;  // its name and arguments
  // Of its file; "": words[0], which is looked up in PATH.
  std::string path;
  // "NAME=value" sets a variable of its environment, "NAME" removes one.
  std::vector<std::string> variables;
  // This process's descriptors that it gets as its standard ones; kNull, or one
  // of the defaults that is closed: /dev/null.
  int input = STDIN_FILENO;
  int output = STDOUT_FILENO;
  int errors = STDERR_FILENO;
  // It also gets the others that aren't close-on-exec, such as the shell's
  // /dev/fd/63: for a program that stands in for this one.
  bool inherits_descriptors = false;
  bool own_group = false;         // leads a process group
  bool dies_with_parent = false;  // is killed when the calling thread ends
  // If set, it starts in there, or not at all.
  absl::optional<Sandbox> sandbox;
};

// Starts the program, in which no signal is blocked. An error names its file:
// "hf: No such file or directory", NOT_FOUND. Other threads may run.
absl::StatusOr<pid_t> StartProgram(const Program& program);

// Starts the program and waits for its end.
absl::StatusOr<ChildEnd> RunProgram(const Program& program);

}  // namespace capstan

#endif  // CAPSTAN_BASE_SUBPROCESS_H_
