// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_WAIT_NOTES_H_
#define CAPSTAN_CLUSTER_MEET_WAIT_NOTES_H_

#include <chrono>
#include <functional>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/launch/network.h"

namespace capstan {

// Prints notes about a wait for others on standard error: after 5 s, after 30
// s, and every minute from then on.
class WaitNotes {
 public:
  Deadline next() const { return next_; }

  // Prints the line that `text` returns, if one is due.
  void SayIfDue(const std::function<std::string()>& text) {
    const Deadline now = MeetingClock::now();
    if (now < next_) return;
    next_ = now + std::chrono::seconds(first_ ? 25 : 60);
    first_ = false;
    std::cerr << absl::StrCat(text(), "\n");
  }

 private:
  Deadline next_ = MeetingClock::now() + std::chrono::seconds(5);
  bool first_ = true;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_WAIT_NOTES_H_
