// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_FLAT_STATE_H_
#define CAPSTAN_STRATEGIES_COMMON_FLAT_STATE_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/lib/initial_values.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/flat_layout.h"

namespace capstan {

// A zeroed flat buffer, attributed to `category`.
at::Tensor Zeros(MemoryCategory category, int64_t numel,
                 const at::TensorOptions& options, at::ScalarType dtype);

// Makes the model's working tensors: for each range of `layout` (whole
// parameters), a tensor in the spec's shape over the memory of `flat`, stored
// in (*parameters)[range.parameter]; for a packed one, of its bytes. Each has
// its own version counter, so that autograd doesn't see updates of `flat` as
// in-place changes.
void MakeParameters(const Model& model, const FlatLayout& layout,
                    const at::Tensor& flat,
                    std::vector<at::Tensor>* parameters);

// FillInitialValues of a buffer that all ranks of the context's group hold
// alike. If they are on several hosts, or GPUs, rank 0 alone reads the values,
// and the others take them from it, so that the model's files are read once.
// Collective; fails on all ranks.
absl::Status FillOnAllRanks(const StrategyContext& context,
                            const std::vector<ParameterRange>& ranges,
                            const at::Tensor& flat);

// Allocates the masters, gradients and, if the compute dtype differs, working
// copies of a shard of `numel` elements with `ranges`, on the device of
// `options`, and fills them with the model's initial values. `on_all_ranks`:
// all hold the same shard.
absl::Status MakeShard(const StrategyContext& context,
                       std::vector<ParameterRange> ranges, int64_t numel,
                       const at::TensorOptions& options, bool on_all_ranks,
                       OptimizerShard* shard);

// The frozen parameters, whole, in the compute dtype on the run's device.
struct FrozenParameters {
  // Also makes the model's working tensors.
  absl::Status Make(const StrategyContext& context,
                    std::vector<at::Tensor>* parameters);

  FlatLayout layout;
  at::Tensor flat;
};

// The location of a whole parameter: its flat buffer and the offset in it.
struct ParameterPlace {
  int buffer = 0;
  int64_t offset = 0;
};

// Sets the places of the parameters that `layout` has in `buffer`.
void SetPlaces(const FlatLayout& layout, int buffer,
               std::vector<ParameterPlace>* places);

// Implements Strategy::ForEachFullParameter for parameters at `places` (one per
// spec). flat(i) returns buffer i's values in any dtype (fn gets float32, the
// dtype of all masters; a buffer with packed ones must be as it is held). It
// may contain collectives: all ranks call it for the same buffers in the same
// order, and again only if another buffer was needed in between.
absl::Status ForEachPlacedParameter(
    const Model& model, const std::vector<ParameterPlace>& places, int rank,
    const std::function<at::Tensor(int buffer)>& flat,
    const std::function<absl::Status(int index, const at::Tensor& value)>& fn);

// Checks that a strategy on flat buffers supports the precision: floating-point
// dtypes, float32 masters.
absl::Status CheckPrecision(const PrecisionPolicy& precision);

// The sum of squares of elements [begin, end) of a flat gradient, a float64
// scalar on its device. Summed in double precision, since float32 squares of
// gradients overflow under a loss scale. Non-finite if an element is.
// Deterministic for a given slice.
at::Tensor SquaredSum(const at::Tensor& flat, int64_t begin, int64_t end);

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_FLAT_STATE_H_
