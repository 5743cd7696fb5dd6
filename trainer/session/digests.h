// SPDX-License-Identifier: Apache-2.0
//
// train.digests: what tells two runs' bits apart.
#ifndef CAPSTAN_TRAINER_SESSION_DIGESTS_H_
#define CAPSTAN_TRAINER_SESSION_DIGESTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/session/session.h"

namespace capstan {

// Digests of whole tensors, each from what this rank owns of them: the sum,
// modulo 2^64, of a hash of each element's index and bits, so that it doesn't
// matter who owns which. A change of one bit changes it; two changes at once
// cancel each other with a chance of 2^-64.
uint64_t DigestOf(const at::Tensor& elements, int64_t first);

// A run's lines of OUTPUT_DIR/digests.jsonl:
//   {"step": 7, "weight": {"lm_head": "0123456789abcdef", ..}, "gradient": ..}
// with the weights (masters) and the optimizer's state after each step, and the
// summed gradient before clipping; step 0, or the one that a run goes on from,
// has no gradient. On all ranks; methods are collective.
class RunDigests {
 public:
  // `session` outlives this.
  explicit RunDigests(Session* session);

  // Of the state that the run begins with.
  absl::Status Begin();
  // Takes the gradients of `step`, which is to be done; then, after its update,
  // writes its line.
  absl::Status Gradients(int64_t step);
  absl::Status Write(int64_t step);

 private:
  using Sums = std::vector<uint64_t>;  // by trainable parameter

  absl::Status Keep(const std::string& kind, const std::string& parameter,
                    int64_t step, int64_t begin, const at::Tensor& elements);
  // Adds the digests of this rank's pieces, and keeps what is asked for.
  absl::Status Add(const CheckpointParts& parts, int64_t step, bool gradients);

  Session& session_;
  const Train train_;
  std::map<std::string, size_t> index_;  // of each parameter in Sums
  std::vector<std::string> kinds_;       // the same on all ranks
  std::map<std::string, Sums> sums_;     // by kind; of this step
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DIGESTS_H_
