// SPDX-License-Identifier: Apache-2.0
//
// train.digests: records by which two runs can be compared bit for bit.
#ifndef CAPSTAN_TRAINER_SESSION_DIGESTS_H_
#define CAPSTAN_TRAINER_SESSION_DIGESTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "host/config/run_config.pb.h"
#include "trainer/checkpoint/checkpoint.h"

namespace capstan {

// Returns the digest of a part of a tensor that begins at element `first`: the
// sum, modulo 2^64, of each element's bits times an odd key of its index
// (multilinear hashing: Carter and Wegman, "Universal Classes of Hash
// Functions", 1979), so that the parts' digests add up to the tensor's. A
// change of one element changes it; changes of several cancel each other with a
// probability of at most 2^-32 (if they are of float32's signs alone), usually
// below 2^-50.
uint64_t DigestOf(const at::Tensor& elements, int64_t first);

// Adds up all ranks' numbers, modulo 2^64, in place. Collective. May throw.
void SumModulo(ProcessGroup& group, std::vector<uint64_t>* sums);

// A run's lines of OUTPUT_DIR/digests.jsonl:
//   {"step": 7, "weight": {"lm_head": "0123456789abcdef", ..}, "gradient": ..}
// with the weights (masters) and the optimizer's state after each step, and the
// summed gradient before clipping. The first line is the initial or restored
// state and has no "gradient". Every rank creates a RunDigests.
class RunDigests {
 public:
  // `parts` returns this rank's state.
  RunDigests(const Digests& config, const std::string& output_dir,
             std::function<CheckpointParts()> parts);

  // Writes the line of the state after `step`, with which the run begins.
  // Collective.
  absl::Status Begin(int64_t step);
  // Digests the gradients of `step` before its update. Not collective: Write
  // returns its error.
  void Gradients(int64_t step);
  // After the update of `step`, writes its line, unless a rank failed; then all
  // ranks return an error. Collective.
  absl::Status Write(int64_t step);

 private:
  using Sums = std::vector<uint64_t>;  // by trainable parameter

  // This rank's state but for the plugins' bytes, which differ between ranks.
  CheckpointParts Tensors() const;
  absl::Status Keep(const std::string& kind, const std::string& parameter,
                    int64_t step, int64_t begin, const at::Tensor& elements);
  // Adds the digests of this rank's pieces, and keeps the tensors that the
  // config asks for.
  absl::Status Add(const CheckpointParts& parts, int64_t step, bool gradients);
  // Opens the file, without a line that a killed run has left incomplete.
  absl::Status OpenFile();
  // `sums`: of all ranks, by kind.
  absl::Status WriteLine(int64_t step, const std::vector<std::string>& kinds,
                         const std::vector<uint64_t>& sums);

  const Digests config_;
  const std::string output_dir_;
  const std::function<CheckpointParts()> parts_;
  const std::vector<ParameterSpec>& specs_;
  ProcessGroup& group_;
  std::map<std::string, size_t> index_;  // of each parameter in Sums
  std::vector<std::string> kinds_;   // the same on all ranks; gradients last
  absl::optional<OutputFile> file_;  // rank 0's
  // Of this step: by kind, whether Gradients was called, and this rank's error.
  std::map<std::string, Sums> sums_;
  bool gradients_ = false;
  absl::Status status_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DIGESTS_H_
