// SPDX-License-Identifier: Apache-2.0
//
// Scoped timers for profiled steps.
#ifndef CAPSTAN_BASE_PROFILE_H_
#define CAPSTAN_BASE_PROFILE_H_

#include <atomic>
#include <cstdint>

namespace capstan {

// Times its own lifetime on this thread if the step is profiled; otherwise
// costs a load and a branch. Scopes nest: a scope's own time excludes its inner
// scopes.
class ProfileScope {
 public:
  // `name` is a string literal, such as "attention".
  explicit ProfileScope(const char* name) {
    if (enabled_.load(std::memory_order_relaxed)) Begin(name);
  }
  ~ProfileScope() {
    if (name_ != nullptr) End();
  }
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  friend class Profiler;  // turns profiling on and collects

  void Begin(const char* name);
  void End();

  static std::atomic<bool> enabled_;

  const char* name_ = nullptr;
  int64_t begin_ns_ = 0;
  int64_t inner_ns_ = 0;  // spent in scopes inside this one
  ProfileScope* outer_ = nullptr;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_PROFILE_H_
