// SPDX-License-Identifier: Apache-2.0
//
// Named ranges of time for tools that watch the process from outside, such as
// Nsight Systems: NVTX, by LibTorch. They nest on each thread.
#ifndef CAPSTAN_TRAINER_PROFILE_RANGES_H_
#define CAPSTAN_TRAINER_PROFILE_RANGES_H_

#include <cstdint>
#include <string>

#include "base/profile_records.h"

namespace capstan {

// From now on every Range and every ProfileScope of this process is an NVTX
// range. Call once, before other threads open any, in a process that has loaded
// LibTorch's CUDA part.
void StartRanges();
// The same with functions other than NVTX's.
void StartRanges(void (*push)(const char* name), void (*pop)());

// A range in this object's lifetime, if they were started; else one load and a
// branch. Unlike a ProfileScope it isn't part of a step's profile.
class Range {
 public:
  explicit Range(const char* name) : on_(ProfileListeners::push != nullptr) {
    if (on_) ProfileListeners::push(name);
  }
  explicit Range(const std::string& name) : Range(name.c_str()) {}
  // "step 7".
  Range(const char* name, int64_t number);
  ~Range() {
    if (on_) ProfileListeners::pop();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  const bool on_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROFILE_RANGES_H_
