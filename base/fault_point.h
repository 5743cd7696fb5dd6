// SPDX-License-Identifier: Apache-2.0
//
// Places where a test has a run fail.
#ifndef CAPSTAN_BASE_FAULT_POINT_H_
#define CAPSTAN_BASE_FAULT_POINT_H_

#include <atomic>
#include <string>

#include "absl/status/status.h"

namespace capstan {

// Off unless the environment variable CAPSTAN_FAULT is set where a rank begins
// (Arm): then each place costs a load and a branch. Its values:
//
//   count:FILE           writes how often each site was passed into FILE.RANK
//   RANK:SITE:N:KIND     fails in the N-th pass (from 1) of SITE on RANK:
//                        throw (std::runtime_error), oom (std::bad_alloc), or
//                        status (INTERNAL, where a Status can be returned)
class FaultPoint {
 public:
  // `site` is a string literal, such as "strategy.Setup". May throw.
  static void Pass(const char* site) {
    if (armed_.load(std::memory_order_relaxed)) Fail(site, false).IgnoreError();
  }
  // Where the caller returns a Status. May throw, too.
  static absl::Status Check(const char* site) {
    return armed_.load(std::memory_order_relaxed) ? Fail(site, true)
                                                  : absl::OkStatus();
  }

  // Reads CAPSTAN_FAULT; call on a rank before anything that may fail. Writes
  // the counts when the returned object dies.
  class Counts {
   public:
    ~Counts();
    std::string path;
  };
  static Counts Arm(int rank);

 private:
  static absl::Status Fail(const char* site, bool may_return);

  static std::atomic<bool> armed_;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_FAULT_POINT_H_
