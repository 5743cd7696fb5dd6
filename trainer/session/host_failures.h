// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_HOST_FAILURES_H_
#define CAPSTAN_TRAINER_SESSION_HOST_FAILURES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "host/config/run_config.pb.h"

namespace capstan {

// The failures that the witness has seen of each host lately, and whether they
// are too many (train.witness.most_failures). All ranks have the same.
class HostFailures {
 public:
  explicit HostFailures(const Witness& rule);

  bool counts() const { return most_ > 0; }
  // Adds `count` failures in a step; returns whether the host is to be left
  // out.
  bool Add(const std::string& host, size_t count, int64_t step);

  // What outlives the ranks, whose restart a failure may have been the cause
  // of. Restore passes over lines that aren't Text's.
  std::string Text() const;
  void Restore(absl::string_view text);

 private:
  const int64_t most_;
  const int64_t within_;  // steps that are checked
  const int64_t every_;   // of how many steps one is
  std::map<std::string, std::deque<int64_t>> steps_;  // by host
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_HOST_FAILURES_H_
