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
#include "trainer/optimizer/paged_state.h"

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

absl::StatusOr<at::Tensor> NewState(const StateShape& shape,
                                    const OptimizerShard& shard,
                                    const StateHome& home) {
  const MemoryScope scope(MemoryCategory::kOptimizerState);
  const int64_t length = StateLength(shape, shard);
  const at::ScalarType dtype = DtypeOf(shape.spec, shard.master.scalar_type());
  if (home.paged) {
    return NewPagedState(length, dtype, shard.master.device(), home.folder);
  }
  at::Tensor zeros = at::empty({length}, shard.master.options().dtype(dtype));
  if (zeros.is_cpu() && zeros.numel() > 0) {
    ZeroFill(zeros.mutable_data_ptr(), zeros.nbytes());
  } else {
    zeros.zero_();
  }
  return zeros;
}

}  // namespace

std::vector<StateShape> StateShapesOf(const Optimizer& optimizer,
                                      const std::vector<ParameterSpec>& specs) {
  std::vector<StateShape> shapes;
  for (const OptimizerStateSpec& spec : optimizer.state_specs()) {
    StateShape shape = {spec};
    const int index = static_cast<int>(shapes.size());
    bool own = false;
    for (const ParameterSpec& parameter : specs) {
      const int64_t numel = parameter.trainable
                                ? optimizer.StateNumel(parameter, index)
                                : Optimizer::kAsSpecified;
      own = own || numel != Optimizer::kAsSpecified;
      shape.numels.push_back(numel);
    }
    if (!own) shape.numels.clear();
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

absl::Status CheckOptimizer(const Optimizer& optimizer,
                            const OptimizerRequest& request) {
  CAPSTAN_RETURN_IF_ERROR(CheckStateSpecs(optimizer));
  return optimizer.Check(request);
}

absl::Status SetUpOptimizer(Optimizer& optimizer, const Model& model,
                            absl::Span<const OptimizerShard> shards,
                            OptimizerState* state, const StateHome& home) {
  const std::vector<StateShape> shapes =
      StateShapesOf(optimizer, model.parameters());
  int64_t block = 1;
  for (const StateShape& shape : shapes) {
    const OptimizerStateSpec& spec = shape.spec;
    if (spec.per_parameter == 0) block = std::max(block, spec.block);
  }
  for (const OptimizerShard& shard : shards) {
    for (const ParameterRange& range : shard.ranges) {
      CAPSTAN_RETURN_IF_ERROR(CheckRange(optimizer, model, range, block));
    }
    std::vector<at::Tensor> tensors;
    for (const StateShape& shape : shapes) {
      CAPSTAN_ASSIGN_OR_RETURN(at::Tensor tensor, NewState(shape, shard, home));
      tensors.push_back(std::move(tensor));
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
    UpdateWhereItIs(optimizer, step, model, shard, state);
    return absl::OkStatus();
  } catch (...) {
    return Annotate(CurrentExceptionToStatus(),
                    absl::StrCat("step ", run_step, ": ", plugin));
  }
}

int64_t OptimizerStateBytes(const Optimizer& optimizer, const Model& model,
                            int64_t elements, c10::ScalarType master) {
  const std::vector<ParameterSpec>& parameters = model.parameters();
  int64_t trainable = 0, trainable_elements = 0;
  for (const ParameterSpec& parameter : parameters) {
    if (!parameter.trainable) continue;
    ++trainable;
    trainable_elements += parameter.numel();
  }
  int64_t bytes = 0;
  for (const StateShape& shape : StateShapesOf(optimizer, parameters)) {
    const OptimizerStateSpec& spec = shape.spec;
    int64_t count = spec.per_parameter > 0 ? trainable * spec.per_parameter
                                           : CeilDivide(elements, spec.block);
    if (!shape.numels.empty()) {
      // The shards' part of it, without padding.
      int64_t whole = 0;
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (!parameters[i].trainable) continue;
        whole += StateNumel(shape, static_cast<int>(i), parameters[i].numel());
      }
      const double part = std::min(
          1.0,
          static_cast<double>(elements) /
              static_cast<double>(std::max<int64_t>(1, trainable_elements)));
      count = static_cast<int64_t>(static_cast<double>(whole) * part);
    }
    bytes +=
        count * static_cast<int64_t>(c10::elementSize(DtypeOf(spec, master)));
  }
  return bytes;
}

int64_t StateNumel(const StateShape& shape, int parameter,
                   int64_t parameter_numel) {
  if (!shape.as_specified(parameter)) return shape.numels[parameter];
  return shape.spec.per_parameter > 0
             ? shape.spec.per_parameter
             : CeilDivide(parameter_numel, shape.spec.block);
}

int64_t StateLength(const StateShape& shape, const OptimizerShard& shard) {
  const OptimizerStateSpec& spec = shape.spec;
  if (!shape.numels.empty()) {
    int64_t length = 0;
    for (const ParameterRange& range : shard.ranges) {
      length += StateNumel(shape, range.parameter, range.length);
    }
    return length;
  }
  if (spec.per_parameter > 0) {
    return spec.per_parameter * static_cast<int64_t>(shard.ranges.size());
  }
  return CeilDivide(shard.master.numel(), spec.block);
}

StatePart StatePartOf(const StateShape& shape,
                      absl::Span<const ParameterRange> ranges, int index,
                      int64_t low, int64_t high) {
  const OptimizerStateSpec& spec = shape.spec;
  const ParameterRange& range = ranges[index];
  int64_t before = 0;  // elements of the ranges before this one
  if (!shape.numels.empty()) {
    for (const ParameterRange& earlier : ranges.first(index)) {
      before += StateNumel(shape, earlier.parameter, earlier.length);
    }
  }
  if (!shape.as_specified(range.parameter)) {
    return {0, shape.numels[range.parameter], before};
  }
  if (spec.per_parameter > 0) {
    return {0, spec.per_parameter,
            shape.numels.empty() ? index * spec.per_parameter : before};
  }
  const int64_t begin = (range.begin + low - range.offset) / spec.block;
  const int64_t end = CeilDivide(range.begin + high - range.offset, spec.block);
  return {begin, end - begin,
          shape.numels.empty() ? low / spec.block
                               : before + (low - range.offset) / spec.block};
}

}  // namespace capstan
