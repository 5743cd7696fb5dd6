// SPDX-License-Identifier: Apache-2.0
//
// LLaDA against plain PyTorch: testdata/llada holds what torch 2.11.0 computed
// in float32 on CPU. (Its losses by name, and its steps: the objective's test.)
#include "plugins/llada/model/llada.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

constexpr char kFolder[] = "tests/golden/testdata/llada";

std::unique_ptr<llada::Llada> Open(const std::string& folder) {
  llada::Config config;
  config.set_pretrained(folder);
  auto model = llada::Llada::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

at::Tensor Value(const Model& model, int index) {
  at::Tensor value = at::empty(model.parameters()[index].shape, at::kFloat);
  EXPECT_TRUE(model
                  .InitialValue(index, 0, 0, value.numel(),
                                value.mutable_data_ptr<float>())
                  .ok());
  return value;
}

class LladaGoldenTest : public testing::Test {
 protected:
  void SetUp() override {
    golden_ = Json::parse(std::ifstream(absl::StrCat(kFolder, "/golden.json")));
    auto tensors =
        SafetensorsReader::Open(absl::StrCat(kFolder, "/golden.safetensors"));
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    const auto raw = [&](const char* name, at::ScalarType dtype) {
      const TensorEntry& entry = (*tensors)->tensors().at(name);
      EXPECT_EQ(entry.dtype, dtype);
      at::Tensor value = at::empty(entry.shape, dtype);
      std::memcpy(value.mutable_data_ptr(), entry.data, entry.bytes);
      return value;
    };
    tokens_ = raw("input_ids", at::kLong);
    noisy_ = raw("noisy_ids", at::kLong);
    mask_ = raw("mask", at::kByte).to(at::kBool);
    logits_ = raw("logits", at::kFloat);
    model_ = Open(kFolder);
    ASSERT_NE(model_, nullptr);
    Bind(at::kFloat);
  }

  void Bind(at::ScalarType dtype) {
    parameters_.clear();
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      parameters_.push_back(Value(*model_, i).to(dtype).requires_grad_(true));
    }
    model_->Bind(parameters_);
  }

  at::Tensor Logits() {
    const at::AutoGradMode no_gradients(false);
    return model_->Logits({noisy_}, runner_);
  }

  // The tokens that the mask hides.
  TokenTargets Hidden() const {
    return {at::where(mask_, tokens_, -100), at::Tensor()};
  }

  Json golden_;
  at::Tensor tokens_, noisy_, mask_, logits_;
  std::unique_ptr<llada::Llada> model_;
  std::vector<at::Tensor> parameters_;
  PlainRunner runner_;
};

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST_F(LladaGoldenTest, Logits) {
  EXPECT_LT(MaxDifference(Logits(), logits_), 1e-5);
}

TEST_F(LladaGoldenTest, IsWhatItsConfigSays) {
  EXPECT_EQ(model_->mask_token(), golden_["mask_id"].get<int64_t>());
  EXPECT_EQ(model_->eos_token(), 2);
  EXPECT_EQ(model_->vocab_size(), 512);
  EXPECT_EQ(model_->max_positions(), 4096);
}

// (1 / (B T)) sum over the masked of CE / p, whose gradient's norm is that of
// the first step.
TEST_F(LladaGoldenTest, WeightedLossAndItsGradient) {
  TokenTargets targets = Hidden();
  targets.weights = at::empty(tokens_.sizes(), at::kFloat);
  for (int64_t row = 0; row < tokens_.size(0); ++row) {
    targets.weights[row].fill_(1.0 / golden_["p"][row].get<double>());
  }
  const at::Tensor loss = model_->CrossEntropySum({noisy_}, targets, runner_) /
                          static_cast<double>(tokens_.numel());
  EXPECT_NEAR(loss.item<double>(), golden_["loss"]["pretrain"].get<double>(),
              1e-5);
  loss.backward();
  double squares = 0.0;
  for (const at::Tensor& p : parameters_) {
    squares += std::pow(p.grad().norm().item<double>(), 2);
  }
  const double wanted = golden_["adamw_pretrain_loss"]["grad_norms"][0];
  EXPECT_NEAR(std::sqrt(squares) / wanted, 1.0, 1e-5);
}

TEST_F(LladaGoldenTest, MeanLossOfTheMasked) {
  const double sum =
      model_->CrossEntropySum({noisy_}, Hidden(), runner_).item<double>();
  EXPECT_NEAR(sum / mask_.sum().item<double>(),
              golden_["loss"]["masked_mean"].get<double>(), 1e-5);
}

TEST_F(LladaGoldenTest, HalfTypesAreClose) {
  const double size = logits_.abs().max().item<double>();
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    Bind(dtype);
    EXPECT_LT(MaxDifference(Logits(), logits_), 0.04 * size);
  }
}

// Written as one file or in shards, the folder is read as it was: names, and
// values to the bit.
TEST_F(LladaGoldenTest, FoldersGoBothWays) {
  for (const bool sharded : {false, true}) {
    const std::string folder =
        testing::TempDir() + (sharded ? "/sharded" : "/single");
    ASSERT_EQ(
        std::system(
            absl::StrCat("rm -rf ", folder, " && mkdir ", folder).c_str()),
        0);
    ASSERT_TRUE(model_->SaveConfig(folder, at::kFloat).ok());
    const auto& specs = model_->parameters();
    const size_t split = sharded ? specs.size() / 2 : specs.size();
    Json places;
    const auto write = [&](const std::string& file, size_t begin, size_t end) {
      auto writer = SafetensorsWriter::Create(absl::StrCat(folder, "/", file));
      ASSERT_TRUE(writer.ok()) << writer.status();
      for (size_t i = begin; i < end; ++i) {
        (*writer)->Declare(specs[i].name, at::kFloat, specs[i].shape);
        places[specs[i].name] = file;
      }
      for (size_t i = begin; i < end; ++i) {
        const at::Tensor value = Value(*model_, i);
        ASSERT_TRUE(
            (*writer)->Append(value.const_data_ptr(), value.nbytes()).ok());
      }
      ASSERT_TRUE((*writer)->Close().ok());
    };
    if (sharded) {
      write("model-00001-of-00002.safetensors", 0, split);
      write("model-00002-of-00002.safetensors", split, specs.size());
      std::ofstream(folder + "/model.safetensors.index.json") << Json(
          {{"metadata", {{"total_size", 868352}}}, {"weight_map", places}});
    } else {
      write("model.safetensors", 0, split);
    }
    const auto again = Open(folder);
    ASSERT_NE(again, nullptr);
    ASSERT_EQ(again->parameters().size(), specs.size());
    const auto original = SafetensorsReader::Open(kFolder);
    ASSERT_TRUE(original.ok());
    ASSERT_EQ((*original)->tensors().size(), specs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(again->parameters()[i].name, specs[i].name);
      const TensorEntry& entry = (*original)->tensors().at(specs[i].name);
      const at::Tensor value = Value(*again, i);
      ASSERT_EQ(entry.bytes, static_cast<int64_t>(value.nbytes()));
      EXPECT_EQ(std::memcmp(value.const_data_ptr(), entry.data, entry.bytes), 0)
          << specs[i].name;
    }
    const Json source =
        Json::parse(std::ifstream(absl::StrCat(kFolder, "/config.json")));
    const Json saved = Json::parse(std::ifstream(folder + "/config.json"));
    for (const auto& [key, value] : source.items()) {
      EXPECT_EQ(saved.at(key), value) << key;
    }
  }
}

}  // namespace
}  // namespace capstan
