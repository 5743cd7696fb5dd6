// SPDX-License-Identifier: Apache-2.0
//
// What make_optimizers.py wrote, and an optimizer's work on it.
#ifndef CAPSTAN_TESTS_GOLDEN_GOLDEN_OPTIMIZER_H_
#define CAPSTAN_TESTS_GOLDEN_GOLDEN_OPTIMIZER_H_

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin_for_test.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {

constexpr int kGoldenSteps = 4;

inline const SafetensorsReader& Golden() {
  static const SafetensorsReader* const reader = [] {
    auto opened = SafetensorsReader::Open(
        "tests/golden/testdata/optimizers/golden.safetensors");
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened->release();
  }();
  return *reader;
}

// Flat.
inline at::Tensor ReadGolden(const std::string& name) {
  const TensorEntry& entry = Golden().tensors().at(name);
  int64_t numel = 1;
  for (const int64_t d : entry.shape) numel *= d;
  at::Tensor out = at::empty({numel});
  EXPECT_TRUE(
      Golden().ReadFloats(name, 0, numel, out.mutable_data_ptr<float>()).ok())
      << name;
  return out;
}

inline at::Tensor ReadGoldenBytes(const std::string& name) {
  const TensorEntry& entry = Golden().tensors().at(name);
  at::Tensor out = at::empty({entry.shape[0]}, at::kByte);
  std::memcpy(out.mutable_data_ptr(), entry.data, entry.bytes);
  return out;
}

// One shard of whole parameters, and an optimizer's state for it.
class GoldenShard {
 public:
  // names: PREFIX.NAME in the golden file.
  GoldenShard(std::unique_ptr<Optimizer> optimizer,
              const std::vector<std::string>& names)
      : optimizer_(std::move(optimizer)) {
    int64_t numel = 0;
    for (const std::string& name : names) {
      ParameterSpec spec;
      spec.name = name;
      spec.shape = Golden().tensors().at(name).shape;
      shard.ranges.push_back(
          {static_cast<int>(specs_.size()), 0, spec.numel(), numel});
      numel += (spec.numel() + 255) / 256 * 256;
      specs_.push_back(std::move(spec));
    }
    shard.master = at::zeros({numel});
    shard.gradient = at::zeros({numel});
    Fill("", shard.master);
    for (const StateShape& shape : StateShapesOf(*optimizer_, specs_)) {
      const at::ScalarType dtype =
          shape.spec.dtype == c10::ScalarType::Undefined ? at::kFloat
                                                         : shape.spec.dtype;
      state.push_back(at::zeros({StateLength(shape, shard)}, dtype));
    }
  }

  void Step(int64_t number) {
    Fill(absl::StrCat(".grad", number), shard.gradient);
    OptimizerStep step;
    step.step = number;
    step.learning_rate = optimizer_->learning_rate();
    optimizer_->Update(step, specs_, shard, absl::MakeSpan(state));
  }

  at::Tensor Parameter(int index) const {
    const ParameterRange& r = shard.ranges[index];
    return shard.master.narrow(0, r.offset, r.length);
  }

  OptimizerShard shard;
  std::vector<at::Tensor> state;

 private:
  void Fill(const std::string& suffix, const at::Tensor& flat) {
    for (const ParameterRange& r : shard.ranges) {
      flat.narrow(0, r.offset, r.length)
          .copy_(ReadGolden(specs_[r.parameter].name + suffix));
    }
  }

  const std::unique_ptr<Optimizer> optimizer_;
  std::vector<ParameterSpec> specs_;
};

template <typename Config>
std::unique_ptr<Optimizer> MakeGolden(const Config& config) {
  auto made = MakePlugin<Optimizer>(config);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

}  // namespace capstan

#endif  // CAPSTAN_TESTS_GOLDEN_GOLDEN_OPTIMIZER_H_
