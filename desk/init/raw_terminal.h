// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_INIT_RAW_TERMINAL_H_
#define CAPSTAN_DESK_INIT_RAW_TERMINAL_H_

#include <termios.h>

#include "absl/types/optional.h"
#include "desk/init/undo.h"

namespace capstan::init {

// Keys one by one, without echo, while it lives.
class RawTerminal {
 public:
  explicit RawTerminal(int fd) {
    termios before;
    if (tcgetattr(fd, &before) != 0) return;
    restore_.emplace([fd, before] { tcsetattr(fd, TCSANOW, &before); });
    termios raw = before;
    raw.c_lflag &= ~(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(fd, TCSADRAIN, &raw);
  }

 private:
  absl::optional<Undo> restore_;
};

}  // namespace capstan::init

#endif  // CAPSTAN_DESK_INIT_RAW_TERMINAL_H_
