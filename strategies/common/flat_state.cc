// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/flat_state.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "kernels/context/on_paper.h"
#include "kernels/cuda/dispatch.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace {

// Pieces of fixed size, so that the sum doesn't depend on the thread count.
constexpr int64_t kPiece = 1 << 16;
constexpr int64_t kBroadcastBytes = 64 << 20;  // at a time

template <typename T>
double SumPiece(const T* x, int64_t n) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const auto v = static_cast<double>(static_cast<float>(x[i + l]));
      lanes[l] += v * v;
    }
  }
  double sum = 0.0;
  for (; i < n; ++i) {
    const auto v = static_cast<double>(static_cast<float>(x[i]));
    sum += v * v;
  }
  for (double lane : lanes) sum += lane;
  return sum;
}

template <typename T>
double SumOnCpu(const at::Tensor& part) {
  const T* data = part.const_data_ptr<T>();
  const int64_t n = part.numel();
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  std::vector<double> sums(pieces);
  at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      sums[p] = SumPiece(data + p * kPiece, std::min(kPiece, n - p * kPiece));
    }
  });
  double sum = 0.0;
  for (double s : sums) sum += s;
  return sum;
}

// A parameter's values, whose place in `values` begins at `offset`.
at::Tensor FullValue(const Model& model, int index, const at::Tensor& values,
                     int64_t offset) {
  const ParameterSpec& spec = model.parameters()[index];
  const int64_t bytes = model.PackedBytes(index);
  if (bytes == 0) {
    return values.narrow(0, offset, spec.numel())
        .view(spec.shape)
        .to(at::kCPU, at::kFloat);
  }
  const at::Tensor packed =
      values.view(at::kByte)
          .narrow(0, offset * values.element_size(), bytes)
          .to(at::kCPU);
  const at::Tensor value = at::empty(spec.shape, at::kFloat);
  model.Unpack(index, packed.const_data_ptr<uint8_t>(),
               value.mutable_data_ptr<float>());
  return value;
}

}  // namespace

at::Tensor Zeros(MemoryCategory category, int64_t numel,
                 const at::TensorOptions& options, at::ScalarType dtype) {
  const MemoryScope scope(category);
  at::Tensor flat = at::empty({numel}, options.dtype(dtype));
  // A device may be copying from pinned pages, which must stay mapped.
  if (!flat.is_cpu() || options.pinned_memory()) return flat.zero_();
  ZeroFill(flat.mutable_data_ptr(), flat.nbytes());
  return flat;
}

void MakeParameters(const Model& model, const FlatLayout& layout,
                    const at::Tensor& flat,
                    std::vector<at::Tensor>* parameters) {
  for (const ParameterRange& range : layout.ranges) {
    const ParameterSpec& spec = model.parameters()[range.parameter];
    const int64_t bytes = model.PackedBytes(range.parameter);
    const at::Tensor stored = flat.narrow(0, range.offset, range.length);
    at::Tensor parameter =
        (bytes > 0 ? stored.view(at::kByte).narrow(0, 0, bytes)
                   : stored.view(spec.shape))
            .variable_data();
    parameter.set_requires_grad(spec.trainable);
    (*parameters)[range.parameter] = std::move(parameter);
  }
}

absl::Status FillOnAllRanks(const StrategyContext& context,
                            const std::vector<ParameterRange>& ranges,
                            const at::Tensor& flat) {
  ProcessGroup& group = *context.group;
  const std::string backend = group.backend();
  // Ranks of one host share the pages of what each of them reads.
  if (OnPaper() || group.size() == 1 || backend == "shm" || backend == "none") {
    return FillInitialValues(*context.model, context.seed, ranges, flat);
  }
  absl::Status status;
  if (group.rank() == 0) {
    status = FillInitialValues(*context.model, context.seed, ranges, flat);
  }
  double failed = status.ok() ? 0 : 1;
  group.AllReduceHost(absl::MakeSpan(&failed, 1));
  CAPSTAN_RETURN_IF_ERROR(status);
  if (failed > 0) {
    return LostPeerError("rank 0 can't read the model's values");
  }
  const int64_t piece = kBroadcastBytes / flat.element_size();
  for (int64_t at = 0; at < flat.numel(); at += piece) {
    group.Broadcast(flat.narrow(0, at, std::min(piece, flat.numel() - at)), 0)
        ->Wait();
  }
  return absl::OkStatus();
}

absl::Status MakeShard(const StrategyContext& context,
                       std::vector<ParameterRange> ranges, int64_t numel,
                       const at::TensorOptions& options, bool on_all_ranks,
                       OptimizerShard* shard) {
  const PrecisionPolicy& precision = context.precision;
  const bool mixed = precision.compute != precision.master;
  shard->ranges = std::move(ranges);
  shard->master =
      Zeros(mixed ? MemoryCategory::kMasters : MemoryCategory::kParameters,
            numel, options, precision.master);
  shard->gradient =
      Zeros(MemoryCategory::kGradients, numel, options, precision.reduce);
  CAPSTAN_RETURN_IF_ERROR(
      on_all_ranks ? FillOnAllRanks(context, shard->ranges, shard->master)
                   : FillInitialValues(*context.model, context.seed,
                                       shard->ranges, shard->master));
  if (!mixed) return absl::OkStatus();
  shard->working =
      Zeros(MemoryCategory::kParameters, numel, options, precision.compute);
  shard->working.copy_(shard->master);
  return absl::OkStatus();
}

absl::Status FrozenParameters::Make(const StrategyContext& context,
                                    std::vector<at::Tensor>* parameters) {
  const std::vector<ParameterSpec> specs =
      StoredSpecs(*context.model, context.precision.compute);
  layout = LayOut(specs, BackwardOrder(specs, /*trainable=*/false));
  flat = Zeros(MemoryCategory::kParameters, layout.numel,
               context.group->device(), context.precision.compute);
  CAPSTAN_RETURN_IF_ERROR(FillOnAllRanks(context, layout.ranges, flat));
  MakeParameters(*context.model, layout, flat, parameters);
  return absl::OkStatus();
}

void SetPlaces(const FlatLayout& layout, int buffer,
               std::vector<ParameterPlace>* places) {
  for (const ParameterRange& range : layout.ranges) {
    (*places)[range.parameter] = {buffer, range.offset};
  }
}

absl::Status ForEachPlacedParameter(
    const Model& model, const std::vector<ParameterPlace>& places, int rank,
    const std::function<at::Tensor(int)>& flat,
    const std::function<absl::Status(int, const at::Tensor&)>& fn) {
  at::NoGradGuard no_grad;
  absl::Status status;
  int buffer = -1;
  at::Tensor values;
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].buffer != buffer) {
      buffer = places[i].buffer;
      values.reset();  // free it before the next one is made
      values = flat(buffer);
    }
    // All ranks visit all buffers, even after an error of fn.
    if (rank != 0 || !status.ok()) continue;
    const int index = static_cast<int>(i);
    status = fn(index, FullValue(model, index, values, places[i].offset));
  }
  return status;
}

absl::Status CheckPrecision(const PrecisionPolicy& precision) {
  const auto refuse = [](const char* what, c10::ScalarType type,
                         const char* wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the precision asks for ", what, " in ", c10::toString(type),
        ", this strategy works with ", wanted, ": choose another precision"));
  };
  const auto is_sum = [](c10::ScalarType type) {
    return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  };
  for (const auto& [what, type] :
       {std::make_pair("computing", precision.compute),
        std::make_pair("summing gradients", precision.reduce)}) {
    if (!is_sum(type)) return refuse(what, type, "Float, BFloat16 and Half");
  }
  if (precision.master != at::kFloat) {
    return refuse("masters", precision.master, "Float");
  }
  return absl::OkStatus();
}

at::Tensor SquaredSum(const at::Tensor& flat, int64_t begin, int64_t end) {
  const at::Tensor part = flat.narrow(0, begin, end - begin);
  if (const auto* cuda = kernels::cuda::For(part)) {
    return kernels::cuda::SquaredSum(*cuda, part);
  }
  double sum = 0.0;
  switch (part.is_cpu() ? part.scalar_type() : at::ScalarType::Undefined) {
    case at::kFloat:
      sum = SumOnCpu<float>(part);
      break;
    case at::kBFloat16:
      sum = SumOnCpu<at::BFloat16>(part);
      break;
    case at::kHalf:
      sum = SumOnCpu<at::Half>(part);
      break;
    default:  // widens the whole part
      return at::linalg_vector_norm(part, 2, at::OptionalIntArrayRef(), false,
                                    at::kDouble)
          .square();
  }
  return at::full({}, sum, at::kDouble);
}

}  // namespace capstan
