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
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/progress.h"
#include "base/status.h"
#include "kernels/context/on_paper.h"
#include "kernels/cuda/dispatch.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace {

// Pieces of fixed size, so that the sum doesn't depend on the thread count.
constexpr int64_t kPiece = 1 << 16;

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

// Calls `piece` for parts of [0, n), in parallel: what they write depends on
// its position alone.
absl::Status ForEachPiece(
    int64_t n,
    const std::function<absl::Status(int64_t begin, int64_t count)>& piece) {
  absl::Status status;
  std::mutex mutex;
  at::parallel_for(0, n, kPiece, [&](int64_t begin, int64_t end) {
    absl::Status done = piece(begin, end - begin);
    if (done.ok()) return;
    std::lock_guard<std::mutex> lock(mutex);
    status = std::move(done);
  });
  return status;
}

// The bytes of a packed parameter's range, which are elements of `slice`.
absl::Status FillPacked(const StrategyContext& context, int64_t bytes,
                        const ParameterRange& range, const at::Tensor& slice) {
  const int64_t begin = range.begin * slice.element_size();
  // The last element may be longer.
  const int64_t count = std::min<int64_t>(slice.nbytes(), bytes - begin);
  const at::Tensor place = slice.view(at::kByte).narrow(0, 0, count);
  const at::Tensor host =
      slice.is_cpu() ? place : at::empty({count}, at::kByte);
  uint8_t* const out = host.mutable_data_ptr<uint8_t>();
  CAPSTAN_RETURN_IF_ERROR(ForEachPiece(count, [&](int64_t from, int64_t n) {
    return context.model->PackedValue(range.parameter, begin + from, n,
                                      out + from);
  }));
  if (!slice.is_cpu()) place.copy_(host);
  return absl::OkStatus();
}

// Model::InitialValue of `count` values from the range's `begin`th on; an error
// names the parameter.
absl::Status ReadInitialValues(const StrategyContext& context,
                               const ParameterRange& range, int64_t begin,
                               int64_t count, float* out) {
  return Annotate(
      context.model->InitialValue(range.parameter, context.seed,
                                  range.begin + begin, count, out),
      absl::StrCat("initial values of '",
                   context.model->parameters()[range.parameter].name, "'"));
}

// A parameter's values in another dtype than float32, on a CPU: converted in
// pieces that fit a cache, not by way of a whole tensor of floats.
absl::Status FillConverted(const StrategyContext& context,
                           const ParameterRange& range,
                           const at::Tensor& slice) {
  return ForEachPiece(range.length, [&](int64_t begin, int64_t count) {
    const at::NoGradGuard no_grad;  // on each thread
    const at::Tensor piece = at::empty({std::min(count, kPiece)}, at::kFloat);
    float* const values = piece.mutable_data_ptr<float>();
    for (const int64_t end = begin + count; begin < end; begin += kPiece) {
      const int64_t n = std::min(end - begin, kPiece);
      CAPSTAN_RETURN_IF_ERROR(
          ReadInitialValues(context, range, begin, n, values));
      slice.narrow(0, begin, n).copy_(piece.narrow(0, 0, n));
    }
    return absl::OkStatus();
  });
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

absl::Status FillInitialValues(const StrategyContext& context,
                               const std::vector<ParameterRange>& ranges,
                               const at::Tensor& flat) {
  if (OnPaper()) return absl::OkStatus();
  at::NoGradGuard no_grad;
  for (const ParameterRange& range : ranges) {
    const at::Tensor slice = flat.narrow(0, range.offset, range.length);
    const int64_t bytes = context.model->PackedBytes(range.parameter);
    if (bytes > 0) {
      CAPSTAN_RETURN_IF_ERROR(FillPacked(context, bytes, range, slice));
      CountProgress();
      continue;
    }
    if (slice.is_cpu() && slice.scalar_type() != at::kFloat) {
      CAPSTAN_RETURN_IF_ERROR(FillConverted(context, range, slice));
      CountProgress();
      continue;
    }
    const at::Tensor host =
        slice.is_cpu() ? slice : at::empty({range.length}, at::kFloat);
    float* out = host.mutable_data_ptr<float>();
    CAPSTAN_RETURN_IF_ERROR(
        ForEachPiece(range.length, [&](int64_t begin, int64_t count) {
          return ReadInitialValues(context, range, begin, count, out + begin);
        }));
    if (!host.is_same(slice)) slice.copy_(host);
    CountProgress();
  }
  return absl::OkStatus();
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

absl::Status MakeShard(const StrategyContext& context,
                       std::vector<ParameterRange> ranges, int64_t numel,
                       const at::TensorOptions& options,
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
      FillInitialValues(context, shard->ranges, shard->master));
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
  CAPSTAN_RETURN_IF_ERROR(FillInitialValues(context, layout.ranges, flat));
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
