// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_FLAT_STATE_H_
#define CAPSTAN_STRATEGIES_COMMON_FLAT_STATE_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/flat_layout.h"

namespace capstan {

// A flat buffer of zeros that counts as memory of `category`.
at::Tensor Zeros(MemoryCategory category, int64_t numel,
                 const at::TensorOptions& options, at::ScalarType dtype);

// Writes the model's initial values of `ranges` to their offsets in `flat`
// (1-D, of any floating dtype and device). Reads nothing else of the model.
absl::Status FillInitialValues(const StrategyContext& context,
                               const std::vector<ParameterRange>& ranges,
                               const at::Tensor& flat);

// What the model computes with: tensors in the shapes of the specs over the
// memory of `flat`, one a range of `layout` (whole parameters), put into
// (*parameters)[range.parameter]. Each has a version counter of its own, so
// that updates of `flat` are no in-place changes to autograd.
void MakeParameters(const std::vector<ParameterSpec>& specs,
                    const FlatLayout& layout, const at::Tensor& flat,
                    std::vector<at::Tensor>* parameters);

// Where a whole parameter lies: in which flat buffer, and where there.
struct ParameterPlace {
  int buffer = 0;
  int64_t offset = 0;
};

// Strategy::ForEachFullParameter for parameters at `places` (one a spec).
// flat(i) returns buffer i's values in any dtype (fn gets float32, that of all
// masters); it may hold
// collectives: it is called on all ranks for the same buffers in the same
// order, again only when another one was asked for in between.
absl::Status ForEachPlacedParameter(
    const std::vector<ParameterSpec>& specs,
    const std::vector<ParameterPlace>& places, int rank,
    const std::function<at::Tensor(int buffer)>& flat,
    const std::function<absl::Status(int index, const at::Tensor& value)>& fn);

// Whether a strategy that computes, sums and updates on flat buffers can do
// what a precision asks: floating-point dtypes, masters in float32.
absl::Status CheckPrecision(const PrecisionPolicy& precision);

// The sum of squares of elements [begin, end) of a flat gradient, summed in
// double precision: float32 squares of gradients under a loss scale overflow.
// Non-finite if an element is. Deterministic for a given slice. A float64
// scalar on flat's device.
at::Tensor SquaredSum(const at::Tensor& flat, int64_t begin, int64_t end);

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_FLAT_STATE_H_
