// SPDX-License-Identifier: Apache-2.0
#include "trainer/optimizer/optimizer_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/sdk/memory.h"

namespace capstan {
namespace {

constexpr int64_t kMostOfBlock = 4096;

int64_t CeilDivide(int64_t n, int64_t d) { return (n + d - 1) / d; }

c10::ScalarType DtypeOf(const OptimizerStateSpec& spec,
                        c10::ScalarType master) {
  return spec.dtype == c10::ScalarType::Undefined ? master : spec.dtype;
}

absl::Status CheckStateSpecs(const Optimizer& optimizer) {
  const std::vector<std::string> names = optimizer.state_names();
  const std::vector<OptimizerStateSpec> specs = optimizer.state_specs();
  bool good = specs.size() == names.size();
  std::set<std::string> once = {"", "master"};
  for (size_t k = 0; good && k < specs.size(); ++k) {
    const OptimizerStateSpec& spec = specs[k];
    const int64_t block = spec.block;
    good = spec.name == names[k] && once.insert(spec.name).second &&
           !absl::StartsWith(spec.name, "strategy.") && block > 0 &&
           block <= kMostOfBlock && (block & (block - 1)) == 0 &&
           spec.per_parameter >= 0;
  }
  if (good) return absl::OkStatus();
  return absl::InternalError(
      "the optimizer's state_specs() and state_names() must have the same "
      "names, all different and neither \"master\" nor \"strategy.\"; a block "
      "is a power of two of at most 4096");
}

absl::Status CheckRange(const Optimizer& optimizer, const Model& model,
                        const ParameterRange& range, int64_t block) {
  const ParameterSpec& spec = model.parameters()[range.parameter];
  const bool ends = range.begin + range.length == spec.numel();
  if (optimizer.NeedsWhole(model, range.parameter) &&
      !(range.begin == 0 && ends)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the optimizer needs '", spec.name,
        "' whole, and the strategy cuts it: choose another strategy, or an "
        "optimizer that doesn't need whole matrices"));
  }
  if (range.begin % block == 0 && range.offset % block == 0 &&
      (ends || range.length % block == 0)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the optimizer keeps its state in blocks of ", block,
                   " elements, and the strategy cuts '", spec.name,
                   "' elsewhere: choose another strategy or optimizer"));
}

at::Tensor NewState(const OptimizerStateSpec& spec,
                    const OptimizerShard& shard) {
  const MemoryScope scope(MemoryCategory::kOptimizerState);
  at::Tensor zeros = at::empty(
      {StateLength(spec, shard)},
      shard.master.options().dtype(DtypeOf(spec, shard.master.scalar_type())));
  if (zeros.is_cpu() && zeros.numel() > 0) {
    ZeroFill(zeros.mutable_data_ptr(), zeros.nbytes());
  } else {
    zeros.zero_();
  }
  return zeros;
}

}  // namespace

absl::Status CheckOptimizer(const Optimizer& optimizer,
                            const OptimizerRequest& request) {
  CAPSTAN_RETURN_IF_ERROR(CheckStateSpecs(optimizer));
  return optimizer.Check(request);
}

absl::Status SetUpOptimizer(Optimizer& optimizer, const Model& model,
                            absl::Span<const OptimizerShard> shards,
                            OptimizerState* state) {
  const std::vector<OptimizerStateSpec> specs = optimizer.state_specs();
  int64_t block = 1;
  for (const OptimizerStateSpec& spec : specs) {
    if (spec.per_parameter == 0) block = std::max(block, spec.block);
  }
  for (const OptimizerShard& shard : shards) {
    for (const ParameterRange& range : shard.ranges) {
      CAPSTAN_RETURN_IF_ERROR(CheckRange(optimizer, model, range, block));
    }
    std::vector<at::Tensor> tensors;
    for (const OptimizerStateSpec& spec : specs) {
      tensors.push_back(NewState(spec, shard));
    }
    state->push_back(std::move(tensors));
  }
  OptimizerContext context;
  context.model = &model;
  context.shards = shards;
  return optimizer.Setup(context);
}

absl::Status UpdateShard(absl::string_view plugin, int64_t run_step,
                         Optimizer& optimizer, const OptimizerStep& step,
                         const Model& model, OptimizerShard& shard,
                         absl::Span<at::Tensor> state) {
  try {
    optimizer.Update(step, model.parameters(), shard, state);
    return absl::OkStatus();
  } catch (...) {
    return Annotate(CurrentExceptionToStatus(),
                    absl::StrCat("step ", run_step, ": ", plugin));
  }
}

int64_t OptimizerStateBytes(const Optimizer& optimizer, const Model& model,
                            int64_t elements, c10::ScalarType master) {
  const std::vector<ParameterSpec>& parameters = model.parameters();
  const int64_t trainable =
      std::count_if(parameters.begin(), parameters.end(),
                    [](const ParameterSpec& p) { return p.trainable; });
  int64_t bytes = 0;
  for (const OptimizerStateSpec& spec : optimizer.state_specs()) {
    const int64_t count = spec.per_parameter > 0
                              ? trainable * spec.per_parameter
                              : CeilDivide(elements, spec.block);
    bytes +=
        count * static_cast<int64_t>(c10::elementSize(DtypeOf(spec, master)));
  }
  return bytes;
}

int64_t StateNumel(const OptimizerStateSpec& spec, int64_t parameter_numel) {
  return spec.per_parameter > 0 ? spec.per_parameter
                                : CeilDivide(parameter_numel, spec.block);
}

int64_t StateLength(const OptimizerStateSpec& spec,
                    const OptimizerShard& shard) {
  if (spec.per_parameter > 0) {
    return spec.per_parameter * static_cast<int64_t>(shard.ranges.size());
  }
  return CeilDivide(shard.master.numel(), spec.block);
}

StatePart StatePartOf(const OptimizerStateSpec& spec,
                      const ParameterRange& range, int index, int64_t low,
                      int64_t high) {
  if (spec.per_parameter > 0) {
    return {0, spec.per_parameter, index * spec.per_parameter};
  }
  const int64_t begin = (range.begin + low - range.offset) / spec.block;
  const int64_t end = CeilDivide(range.begin + high - range.offset, spec.block);
  return {begin, end - begin, low / spec.block};
}

}  // namespace capstan
