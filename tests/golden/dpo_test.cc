// SPDX-License-Identifier: Apache-2.0
//
// Preferences on the Llama against TRL: testdata/dpo holds what TRL 1.16.0 with
// torch 2.11.0 computed in float32 on CPU (tests/peers/make_dpo_golden.py).
#include "plugins/dpo/objective/dpo.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugins/dpo/objective/pair_losses.h"
#include "plugins/dpo/objective/reference_file.h"
#include "plugins/model/llama/llama.h"
#include "plugins/optimizer/adamw/adamw.pb.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/pair_batch.h"
#include "plugins/sdk/plugin_for_test.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

constexpr char kBase[] = "tests/golden/testdata/llama";
constexpr char kDpo[] = "tests/golden/testdata/dpo";
constexpr int64_t kPairsAStep = 2;

const Json& Golden() {
  static const Json golden =
      Json::parse(std::ifstream(std::string(kDpo) + "/golden.json"));
  return golden;
}

// Pairs [begin, begin + n), padded.
Batch BatchOf(int64_t begin, int64_t n) {
  std::vector<std::vector<int64_t>> ids;
  std::vector<size_t> prompts;
  size_t length = 0;
  for (const char* side : {"chosen", "rejected"}) {
    for (int64_t i = begin; i < begin + n; ++i) {
      const Json& pair = Golden()["pairs"][i];
      ids.push_back(pair["prompt"].get<std::vector<int64_t>>());
      prompts.push_back(ids.back().size());
      for (const int64_t id : pair[side]) ids.back().push_back(id);
      length = std::max(length, ids.back().size());
    }
  }
  Batch batch;
  const std::vector<int64_t> shape = {2 * n, static_cast<int64_t>(length)};
  batch[kInputIds] = at::full(shape, 0, at::kLong);
  batch[kLabels] = at::full(shape, kIgnoredTarget, at::kLong);
  batch[kTokenCounts] = at::full({2 * n}, 0, at::kLong);
  batch[kPairKeys] = at::full({n}, 0, at::kLong);
  batch[kSamplePosition] = at::full({n}, 0, at::kLong);
  for (int64_t row = 0; row < 2 * n; ++row) {
    batch[kTokenCounts][row] = static_cast<int64_t>(ids[row].size());
    for (size_t t = 0; t < ids[row].size(); ++t) {
      const auto at = static_cast<int64_t>(t);
      batch[kInputIds][row][at] = ids[row][t];
      if (t >= prompts[row]) batch[kLabels][row][at] = ids[row][t];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    batch[kPairKeys][i] = begin + i;
    batch[kSamplePosition][i] = begin + i;
  }
  return batch;
}

// A model with its parameters, and AdamW on those that are trained.
class Trained {
 public:
  Trained(const std::string& adapter, double learning_rate) {
    llama::Config config;
    config.set_pretrained(kBase);
    auto model = llama::Llama::Create(config);
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    if (!adapter.empty()) {
      auto spec = ReadAdapterConfig(adapter);
      EXPECT_TRUE(spec.ok()) << spec.status();
      EXPECT_TRUE(model_->AddLora(*spec).ok());
    }
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      const ParameterSpec& spec = model_->parameters()[i];
      at::Tensor value = at::empty(spec.shape, at::kFloat);
      EXPECT_TRUE(model_
                      ->InitialValue(static_cast<int>(i), 0, 0, value.numel(),
                                     value.mutable_data_ptr<float>())
                      .ok());
      parameters.push_back(value.requires_grad_(spec.trainable));
      if (spec.trainable) trained_.push_back(parameters.back());
    }
    model_->Bind(parameters);
    adamw::Config adamw;
    adamw.set_learning_rate(learning_rate);
    adamw.set_beta1(0.9);
    adamw.set_beta2(0.999);
    adamw.set_weight_decay(0.0);
    auto optimizer = MakePlugin<Optimizer>(adamw);
    EXPECT_TRUE(optimizer.ok()) << optimizer.status();
    optimizer_ = *std::move(optimizer);
    shards_.resize(trained_.size());
    states_.resize(trained_.size());
    for (size_t i = 0; i < trained_.size(); ++i) {
      shards_[i].master = trained_[i].detach().view({-1});  // the same memory
      for (size_t s = 0; s < optimizer_->state_names().size(); ++s) {
        states_[i].push_back(at::zeros_like(shards_[i].master));
      }
    }
    step_.learning_rate = optimizer_->learning_rate();
    step_.step = 0;
  }

  llama::Llama& model() { return *model_; }

  LossSum Step(dpo::Dpo& objective, const Batch& batch) {
    StepInfo info;
    info.training = true;
    const LossSum loss = objective.Compute(*model_, batch, info, runner_);
    (loss.sum / static_cast<double>(loss.count)).backward();
    ++step_.step;
    for (size_t i = 0; i < trained_.size(); ++i) {
      shards_[i].gradient = trained_[i].grad().reshape({-1});
      optimizer_->Update(step_, model_->parameters(), shards_[i],
                         absl::MakeSpan(states_[i]));
      trained_[i].mutable_grad().reset();
    }
    return loss;
  }

 private:
  std::unique_ptr<llama::Llama> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<at::Tensor> trained_;
  std::vector<OptimizerShard> shards_;
  std::vector<std::vector<at::Tensor>> states_;
  OptimizerStep step_;
  PlainRunner runner_;
};

class Pairs final : public DatasetReader {
 public:
  int64_t size() const override { return 20; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch*) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
};

void ExpectTrlsSteps(const char* name, Trained& run, dpo::Dpo& objective) {
  const Json& wanted = Golden()[name];
  ASSERT_TRUE(objective.Check(run.model(), Pairs()).ok());
  const std::vector<MetricTags> tags = objective.metrics();
  ASSERT_EQ(wanted["losses"].size(), 10u);
  for (int64_t step = 0; step < 10; ++step) {
    const LossSum loss =
        run.Step(objective, BatchOf(step * kPairsAStep, kPairsAStep));
    EXPECT_NEAR(loss.sum.item<double>() / kPairsAStep,
                wanted["losses"][step].get<double>(), 1e-4)
        << name << ", step " << step + 1;
    for (size_t i = 0; i < tags.size(); ++i) {
      const std::string metric = tags[i].train.substr(sizeof("train/") - 1);
      const auto row = static_cast<int64_t>(i);
      // logps are sums over up to 9 tokens.
      EXPECT_NEAR((loss.metrics[row][0] / loss.metrics[row][1]).item<double>(),
                  wanted["metrics"][metric][step].get<double>(),
                  i < 4 ? 1e-4 : 1e-3)
          << name << ", " << metric << ", step " << step + 1;
    }
  }
}

// The reference that `trainer dpo-reference` would write, by evaluation; also
// compared with TRL's.
std::string MadeReference() {
  const std::string path = ::testing::TempDir() + "/dpo_golden.reference";
  std::filesystem::remove(path);
  Trained run("", 1e-3);
  dpo::Config config;
  config.set_reference(path);
  config.set_write_reference(true);
  auto objective = dpo::Dpo::Create(config);
  EXPECT_TRUE(objective.ok()) << objective.status();
  PlainRunner runner;
  for (int64_t i = 0; i < 20; i += 4) {
    (*objective)->Compute(run.model(), BatchOf(i, 4), {}, runner);
  }
  const MeasureInfo info;
  auto sums = (*objective)->Measure(run.model(), Pairs(), info, runner);
  EXPECT_TRUE(sums.ok()) << sums.status();
  (*objective)->Summarize(*sums, info);
  auto file = dpo::ReadReference(path);
  EXPECT_TRUE(file.ok()) << file.status();
  const Json& wanted = Golden()["sigmoid"]["reference"];
  for (int64_t i = 0; i < 20; ++i) {
    const dpo::ReferenceLogps& logps = file->pairs.at(i);
    EXPECT_NEAR(logps.chosen, wanted[0][i].get<double>(), 1e-4) << i;
    EXPECT_NEAR(logps.rejected, wanted[1][i].get<double>(), 1e-4) << i;
  }
  return path;
}

TEST(DpoGoldenTest, TenStepsOfAllWeightsWithAReferenceFile) {
  const std::string path = MadeReference();
  for (const auto& [name, loss] :
       {std::pair{"sigmoid", dpo::SIGMOID}, std::pair{"ipo", dpo::IPO}}) {
    dpo::Config config;
    config.set_loss(loss);
    config.set_beta(0.2);
    config.set_reference(path);
    auto objective = dpo::Dpo::Create(config);
    ASSERT_TRUE(objective.ok()) << objective.status();
    Trained run("", 1e-3);
    ExpectTrlsSteps(name, run, **objective);
  }
}

TEST(DpoGoldenTest, TenStepsOfAnAdapterThatIsSwitchedOffForTheReference) {
  dpo::Config config;
  config.set_beta(0.2);
  auto objective = dpo::Dpo::Create(config);
  ASSERT_TRUE(objective.ok()) << objective.status();
  Trained run(std::string(kDpo) + "/adapter", 2e-2);
  ExpectTrlsSteps("lora", run, **objective);
}

TEST(DpoGoldenTest, Formulas) {
  const Json& wanted = Golden()["formulas"];
  const auto numbers = [&](const char* key) {
    return at::tensor(wanted[key].get<std::vector<double>>(), at::kFloat);
  };
  dpo::Pairs pairs;
  pairs.chosen = numbers("chosen");
  pairs.rejected = numbers("rejected");
  pairs.chosen_tokens = pairs.rejected_tokens = at::full({4}, 1.0, at::kFloat);
  pairs.chosen_reference = pairs.rejected_reference =
      at::full({4}, 0.0, at::kFloat);
  dpo::LossOptions options;
  options.beta = wanted["beta"];
  options.gamma = wanted["gamma"];
  options.loss = dpo::ORPO;
  const auto expect = [&](const char* key) {
    const at::Tensor losses = LossesOf(options, pairs).losses;
    EXPECT_LT((losses - numbers(key)).abs().max().item<double>(), 1e-6) << key;
  };
  expect("orpo");
  const dpo::PairLosses orpo = LossesOf(options, pairs);
  EXPECT_NEAR(orpo.metrics[6].mean().item<double>(),
              wanted["orpo_ratio"].get<double>(), 1e-6);
  EXPECT_NEAR(orpo.metrics[7].mean().item<double>(),
              wanted["orpo_log_odds"].get<double>(), 1e-6);
  options.label_smoothing = wanted["label_smoothing"];
  options.loss = dpo::SIMPO;
  expect("simpo");
  options.loss = dpo::SIGMOID;
  expect("sigmoid_smoothed");
}

}  // namespace
}  // namespace capstan
