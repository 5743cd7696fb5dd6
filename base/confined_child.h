// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_CONFINED_CHILD_H_
#define CAPSTAN_BASE_CONFINED_CHILD_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/confine.h"

namespace capstan {

// A forked process of this program that does what may crash, loop or take all
// memory, such as reading a hostile file. It and its parent talk through a
// socket, and are both done when either closes it.
class ConfinedChild {
 public:
  // The child's end of the socket.
  class Parent {
   public:
    explicit Parent(int fd) : fd_(fd) {}
    // Takes exactly so many bytes. False if the parent is done.
    bool Receive(void* bytes, size_t size) const;
    // Sends a message, or an error in its place. False if the parent is done.
    bool Send(const absl::StatusOr<absl::string_view>& message) const;

   private:
    const int fd_;
  };

  // `serve` runs in the child, without any other file that this process has
  // open; when it returns, the child ends. It may allocate, and take no lock
  // that another thread may hold. What it throws becomes its last message.
  static absl::StatusOr<std::unique_ptr<ConfinedChild>> Start(
      const ChildLimits& limits,
      const std::function<void(const Parent&)>& serve);
  // Kills the child.
  ~ConfinedChild();
  ConfinedChild(const ConfinedChild&) = delete;
  ConfinedChild& operator=(const ConfinedChild&) = delete;

  // The child's next message, of at most `most` bytes, or the error that it has
  // sent. If it has ended instead, ended() becomes true, and the error says
  // how: "crashed (Segmentation fault)", or RESOURCE_EXHAUSTED, "takes too
  // long".
  absl::StatusOr<std::string> Receive(uint64_t most);
  // Sends exactly these bytes. Errors: as Receive's.
  absl::Status Send(absl::string_view bytes);
  bool ended() const { return pid_ < 0; }

 private:
  ConfinedChild(pid_t pid, int fd) : pid_(pid), fd_(fd) {}

  absl::Status Death();

  pid_t pid_;  // -1: it has ended
  const int fd_;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_CONFINED_CHILD_H_
