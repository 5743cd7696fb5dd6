// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_INIT_UNDO_H_
#define CAPSTAN_DESK_INIT_UNDO_H_

#include <functional>

namespace capstan::init {

// Calls `undo` once: in the destructor or, on another thread, before SIGINT,
// SIGTERM or SIGHUP ends the process, the latest Undo first. Ignored signals
// stay ignored.
class Undo {
 public:
  explicit Undo(std::function<void()> undo);
  ~Undo();
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;

  // Of the signal's thread.
  void Call() const { undo_(); }

 private:
  const std::function<void()> undo_;
};

}  // namespace capstan::init

#endif  // CAPSTAN_DESK_INIT_UNDO_H_
