// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/replicated_state.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <mutex>
#include <utility>

#include "plugins/sdk/status.h"

namespace capstan {

absl::Status ReplicatedState::Setup(const StrategyContext& context) {
  context_ = context;
  const std::vector<ParameterSpec>& specs = context.model->parameters();
  const PrecisionPolicy& precision = context.precision;
  const auto on_device =
      at::TensorOptions().device(context.group->device()).requires_grad(false);
  layout_ = LayOut(specs, BackwardOrder(specs, /*trainable=*/true));
  frozen_layout_ = LayOut(specs, BackwardOrder(specs, /*trainable=*/false));

  shard_.ranges = layout_.ranges;
  shard_.master = at::zeros({layout_.numel}, on_device.dtype(precision.master));
  shard_.gradient =
      at::zeros({layout_.numel}, on_device.dtype(precision.reduce));
  CAPSTAN_RETURN_IF_ERROR(Initialize(context, layout_, shard_.master));
  at::Tensor working = shard_.master;
  if (precision.compute != precision.master) {
    shard_.working = shard_.master.to(precision.compute);
    working = shard_.working;
  }
  frozen_ =
      at::zeros({frozen_layout_.numel}, on_device.dtype(precision.master));
  CAPSTAN_RETURN_IF_ERROR(Initialize(context, frozen_layout_, frozen_));
  frozen_ = frozen_.to(precision.compute);

  parameters_.resize(specs.size());
  Bind(layout_, working, specs);
  Bind(frozen_layout_, frozen_, specs);
  context.model->Bind(parameters_);
  return absl::OkStatus();
}

absl::Status ReplicatedState::Initialize(const StrategyContext& context,
                                         const FlatLayout& layout,
                                         at::Tensor master) {
  for (const ParameterRange& range : layout.ranges) {
    at::Tensor slice = master.narrow(0, range.offset, range.length);
    at::Tensor host = slice.is_cpu() && slice.scalar_type() == at::kFloat
                          ? slice
                          : at::empty({range.length}, at::kFloat);
    float* out = host.mutable_data_ptr<float>();
    // Pieces in parallel: a value depends on its position alone.
    constexpr int64_t kPiece = 1 << 16;
    absl::Status status;
    std::mutex mutex;
    at::parallel_for(0, range.length, kPiece, [&](int64_t begin, int64_t end) {
      absl::Status piece = context.model->InitialValue(
          range.parameter, context.seed, begin, end - begin, out + begin);
      if (piece.ok()) return;
      std::lock_guard<std::mutex> lock(mutex);
      status = std::move(piece);
    });
    CAPSTAN_RETURN_IF_ERROR(status);
    if (!host.is_same(slice)) slice.copy_(host);
  }
  return absl::OkStatus();
}

void ReplicatedState::Bind(const FlatLayout& layout, const at::Tensor& working,
                           const std::vector<ParameterSpec>& specs) {
  for (const ParameterRange& range : layout.ranges) {
    const ParameterSpec& spec = specs[range.parameter];
    // A tensor of its own over the same memory, with a version counter of its
    // own: updates of the flat buffer are no in-place changes to autograd.
    at::Tensor parameter = working.narrow(0, range.offset, range.length)
                               .view(spec.shape)
                               .variable_data();
    parameter.set_requires_grad(spec.trainable);
    parameters_[range.parameter] = std::move(parameter);
  }
}

absl::Status ReplicatedState::ForEachFullParameter(
    const std::function<absl::Status(int, const at::Tensor&)>& fn) const {
  if (context_.group->rank() != 0) return absl::OkStatus();
  const std::vector<ParameterSpec>& specs = context_.model->parameters();
  std::vector<std::pair<at::Tensor, int64_t>> places(specs.size());
  for (const ParameterRange& range : layout_.ranges) {
    places[range.parameter] = {shard_.master, range.offset};
  }
  for (const ParameterRange& range : frozen_layout_.ranges) {
    places[range.parameter] = {frozen_, range.offset};
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto& [flat, offset] = places[i];
    const at::Tensor value = flat.narrow(0, offset, specs[i].numel())
                                 .view(specs[i].shape)
                                 .to(at::kCPU, context_.precision.master);
    CAPSTAN_RETURN_IF_ERROR(fn(static_cast<int>(i), value));
  }
  return absl::OkStatus();
}

}  // namespace capstan
