// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_READER_CHILD_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_READER_CHILD_H_

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/confine.h"

namespace capstan::darkroom {

// A forked process of this program that reads what may crash its reader. The
// two talk through a socket, and are both done when either closes it.
class ReaderChild {
 public:
  // `serve` runs in the child with its end of the socket, and without any other
  // file that this process has open; when it returns, the child ends. It may
  // allocate, and take no lock that another thread may hold.
  static absl::StatusOr<std::unique_ptr<ReaderChild>> Start(
      const ChildLimits& limits, const std::function<void(int)>& serve);
  // Kills the child.
  ~ReaderChild();
  ReaderChild(const ReaderChild&) = delete;
  ReaderChild& operator=(const ReaderChild&) = delete;

  // Each sends or takes exactly so many bytes. An error says how the child has
  // ended: "crashed (Segmentation fault)".
  absl::Status Send(const void* bytes, size_t size);
  absl::Status Receive(void* bytes, size_t size);

 private:
  ReaderChild(pid_t pid, int fd) : pid_(pid), fd_(fd) {}

  absl::Status Death();

  pid_t pid_;  // -1: it has ended
  const int fd_;
};

// The child's: false if the other end is closed.
bool SendAll(int fd, const void* bytes, size_t size);
bool ReceiveAll(int fd, void* bytes, size_t size);

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_READER_CHILD_H_
