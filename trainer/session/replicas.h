// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_REPLICAS_H_
#define CAPSTAN_TRAINER_SESSION_REPLICAS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/state_kinds.h"

namespace capstan {

// A tensor whose bits differ between ranks that hold the same part.
struct ReplicaDifference {
  std::string parameter;
  // A kind of state (state_kinds.h); "": the weights or their working copy.
  std::string kind;
  std::vector<int> ranks;  // whose bits are in the minority
  int other = 0;           // the lowest of the others that hold it
};

// Compares what several ranks hold of the model (their OptimizerShards): the
// masters, their working copies, the optimizer's and the strategy's state. A
// checkpoint has only the owner's, so a resumed run continues the same curve
// only if the bits are equal. Costs nothing if no two ranks hold the same
// element.
class Replicas {
 public:
  // Returns the first difference, in the weights before the state; the same on
  // all ranks. Reads everything compared once, and waits for the device.
  // `parts` has the same layout in all calls. Collective.
  absl::StatusOr<absl::optional<ReplicaDifference>> Compare(
      const CheckpointParts& parts);

 private:
  // Elements [begin, end) of a parameter, which at least two `holders` hold.
  struct Common {
    int parameter = 0;
    int64_t begin = 0;
    int64_t end = 0;
    std::vector<int> holders;  // ascending
  };

  void FindCommon(const CheckpointParts& parts);
  // Returns digests of this rank's part, by common_, then by kind, of which the
  // last is the working copy; 0 where the rank isn't a holder.
  std::vector<uint64_t> Digests(const CheckpointParts& parts,
                                const std::vector<StateKind>& state) const;
  absl::optional<ReplicaDifference> FirstDifference(
      const CheckpointParts& parts, const std::vector<StateKind>& state,
      const std::vector<uint64_t>& mine) const;

  bool found_ = false;
  std::vector<Common> common_;
};

// Returns a digest of a tensor's bits, computed on its device with 8 kernels
// for each 4 million elements. Exported for tests; the host uses a checksum
// instead.
uint32_t DeviceDigest(const at::Tensor& elements);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_REPLICAS_H_
