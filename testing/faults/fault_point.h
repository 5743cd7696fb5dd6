// SPDX-License-Identifier: Apache-2.0
//
// Places where a test makes a run fail. interposed.cc puts them into the core.
#ifndef CAPSTAN_TESTING_FAULTS_FAULT_POINT_H_
#define CAPSTAN_TESTING_FAULTS_FAULT_POINT_H_

#include <atomic>
#include <string>

#include "absl/status/status.h"

namespace capstan {

// Nothing happens in a process until Arm is called there.
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

  // Call on a rank before anything that may fail. `fault` is one of
  //
  //   none                 nothing fails
  //   count:FILE           the returned object, when it dies, writes how often
  //                        each site was passed into FILE.RANK
  //   RANK:SITE:N:KIND     fails in the N-th pass (from 1) of SITE on RANK:
  //                        throw (std::runtime_error), oom (std::bad_alloc),
  //                        or status (INTERNAL, where a Status can be returned)
  class Counts {
   public:
    ~Counts();
    std::string path;
  };
  static Counts Arm(const std::string& fault, int rank);

 private:
  static absl::Status Fail(const char* site, bool may_return);

  static std::atomic<bool> armed_;
};

}  // namespace capstan

#endif  // CAPSTAN_TESTING_FAULTS_FAULT_POINT_H_
