// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_SANDBOX_H_
#define CAPSTAN_BASE_SANDBOX_H_

#include <linux/filter.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace capstan {

// What a program that nobody has read may take. Besides, it leads a session of
// its own, reaches no network, starts no other process, signals none but
// itself, and changes no file's owner or permissions (seccomp); files outside
// of `folder` it can read, and where the kernel has Landlock (Linux 5.13), not
// write, create or remove.
struct Sandbox {
  std::string folder;                      // absolute; where it starts
  int64_t cpu_seconds = 5;                 // then SIGXCPU or SIGKILL ends it
  int64_t bytes = int64_t{2} << 30;        // of address space
  int64_t file_bytes = int64_t{64} << 20;  // of each file that it writes
  int64_t files = 64;                      // open at once
};

// The way into a sandbox, in two parts: one that may allocate, and one in a
// child that shares its parent's memory until exec.
class SandboxDoor {
 public:
  explicit SandboxDoor(const Sandbox& sandbox);
  ~SandboxDoor();
  SandboxDoor(const SandboxDoor&) = delete;
  SandboxDoor& operator=(const SandboxDoor&) = delete;

  // UNIMPLEMENTED on processors whose system calls aren't known here.
  const absl::Status& status() const { return status_; }

  // The child's last call before exec: allocates nothing. If false, errno says
  // why, and the child must not go on.
  bool Enter();

 private:
  const Sandbox sandbox_;
  std::vector<sock_filter> filter_;
  std::vector<size_t> own_pid_;  // places in filter_ that wait for it
  int rules_ = -1;               // Landlock's; -1: the kernel has none
  absl::Status status_;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_SANDBOX_H_
