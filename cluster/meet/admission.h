// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_ADMISSION_H_
#define CAPSTAN_CLUSTER_MEET_ADMISSION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "cluster/meet/protocol.h"

namespace capstan {

// Decides who may join a run, and knows who has. Not thread-safe; knows no
// sockets.
class Admission {
 public:
  Admission(int world_size, std::string run_key, std::string token);

  // Returns nullopt if the sender of `hello` may go on to prove it, otherwise
  // the refusal.
  absl::optional<Refusal> JudgeHello(const Hello& hello) const;
  // Rank 0's answer to a hello.
  Challenge ChallengeFor(absl::string_view hello_payload) const;
  // Admits the rank and returns nullopt if `proof` answers a challenge with
  // `nonce` and the rank hasn't joined yet.
  absl::optional<Refusal> JudgeProof(const Hello& hello,
                                     absl::string_view hello_payload,
                                     absl::string_view nonce,
                                     const Proof& proof);

  // Removes a rank that had joined, so that it may join again.
  void Leave(int rank);

  // Whether this run has a key or token. If so, a rank with another world size
  // can only be a mistake within the run.
  bool knows_its_ranks() const { return !run_key_.empty() || !token_.empty(); }
  bool complete() const { return joined_ == static_cast<int>(ranks_.size()); }
  std::vector<int> MissingRanks() const;

  // Refuses everybody from now on, with this refusal.
  void Fail(const Refusal& why) { failure_ = why; }
  bool failed() const { return failure_.has_value(); }

 private:
  const std::string run_key_;
  const std::string token_;
  // The hellos of those who have joined, by rank.
  std::vector<absl::optional<Hello>> ranks_;
  int joined_ = 0;
  absl::optional<Refusal> failure_;
};

// "rank 2 is missing", "ranks 1, 2 are missing".
std::string AreMissing(const std::vector<int>& ranks);
// "only 1 of 3 ranks came; missing: 1, 2".
std::string OnlySomeCame(int world_size, const std::vector<int>& missing);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_ADMISSION_H_
