// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_DILOCO_MEAN_CHANGE_H_
#define CAPSTAN_STRATEGIES_DILOCO_MEAN_CHANGE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "plugins/sdk/process_group.h"
#include "strategies/diloco/diloco.pb.h"

namespace capstan::diloco {

// The mean over the ranks of shared - own, a part at a time, as the same bits
// on all ranks. Collective.
class MeanChange {
 public:
  // `shared` and `own` are [n] float32 on the group's device, and like the
  // group outlive this; parts that have been returned may change.
  MeanChange(const at::Tensor& shared, const at::Tensor& own,
             Config::Deltas deltas, ProcessGroup* group);

  // Advances to the next part; false after the last. Throws CommunicationError.
  bool Next();
  // The part's first element, and its values, which the caller may overwrite.
  int64_t begin() const { return begin_; }
  const at::Tensor& value() const { return value_; }

  // Bytes that a rank sends for `elements`, and the memory that this takes.
  static int64_t Sent(int64_t elements, Config::Deltas deltas, int ranks);
  static int64_t Workspace(int64_t elements, Config::Deltas deltas, int ranks);

 private:
  void AverageFloats();
  void AverageBytes();

  const at::Tensor shared_;
  const at::Tensor own_;
  const Config::Deltas deltas_;
  ProcessGroup& group_;
  int64_t begin_ = 0;
  int64_t next_ = 0;
  at::Tensor value_;
};

}  // namespace capstan::diloco

#endif  // CAPSTAN_STRATEGIES_DILOCO_MEAN_CHANGE_H_
