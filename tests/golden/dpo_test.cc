// SPDX-License-Identifier: Apache-2.0
//
// Preferences on the Llama against TRL: testdata/dpo holds what TRL 1.16.0 with
// torch 2.11.0 computed in float32 on CPU (tests/peers/make_dpo_golden.py).
#include "plugins/dpo/objective/dpo.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugins/dpo/objective/losses.h"
#include "plugins/dpo/objective/reference_file.h"
#include "plugins/model/llama/llama.h"
#include "plugins/sdk/lib/lora.h"
#include "tests/golden/pair_golden.h"

namespace capstan {
namespace {

std::unique_ptr<Model> Llama(const std::string& adapter) {
  llama::Config config;
  config.set_pretrained(kBase);
  auto model = llama::Llama::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!adapter.empty()) {
    auto spec = ReadAdapterConfig(adapter);
    EXPECT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE((*model)->AddLora(*spec).ok());
  }
  return *std::move(model);
}

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

// The reference that `trainer dpo-reference` would write, by evaluation.
dpo::Reference MakeReference(const std::string& path, dpo::Loss loss,
                             const std::function<Batch(int64_t)>& batch) {
  std::filesystem::remove(path);
  Trained run(Llama(""), 1e-3);
  dpo::Config config;
  config.set_loss(loss);
  config.set_reference(path);
  config.set_write_reference(true);
  auto objective = dpo::Dpo::Create(config);
  EXPECT_TRUE(objective.ok()) << objective.status();
  PlainRunner runner;
  for (int64_t i = 0; i < 20; i += kPairsAStep) {
    (*objective)->Compute(run.model(), batch(i), {}, runner);
  }
  const MeasureInfo info;
  auto sums = (*objective)->Measure(run.model(), Pairs(), info, runner);
  EXPECT_TRUE(sums.ok()) << sums.status();
  (*objective)->Summarize(*sums, info);
  auto file = dpo::ReadReference(path);
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

// Also compared with TRL's.
std::string MadeReference() {
  const std::string path = ::testing::TempDir() + "/dpo_golden.reference";
  const dpo::Reference made =
      MakeReference(path, dpo::SIGMOID,
                    [](int64_t begin) { return BatchOf(begin, kPairsAStep); });
  const Json& wanted = Golden()["sigmoid"]["reference"];
  for (int64_t i = 0; i < 20; ++i) {
    const dpo::ReferenceLogps& logps = made.pairs.at(i);
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
    Trained run(Llama(""), 1e-3);
    ExpectTrlsSteps(name, run, **objective);
  }
}

TEST(DpoGoldenTest, TenStepsOfAnAdapterThatIsSwitchedOffForTheReference) {
  dpo::Config config;
  config.set_beta(0.2);
  auto objective = dpo::Dpo::Create(config);
  ASSERT_TRUE(objective.ok()) << objective.status();
  Trained run(Llama(std::string(kDpo) + "/adapter"), 2e-2);
  ExpectTrlsSteps("lora", run, **objective);
}

// Two answers of make_reward_golden.py, each with its prompt and the other's
// completion behind: where TRL's KL term comes from.
Batch AnswersOf(int64_t begin) {
  std::vector<Answer> texts(2 * kPairsAStep);
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < kPairsAStep; ++i) {
    const Json& pair = Golden()["pairs"][begin + i];
    labels.push_back((begin + i) % 3 == 0 ? 0 : 1);
    const std::vector<int64_t> completion =
        pair[labels.back() == 1 ? "chosen" : "rejected"];
    texts[i] = {pair["prompt"], completion};
    texts[kPairsAStep + i].prompt = texts[i].prompt;
    texts[2 * kPairsAStep - 1 - i].completion = completion;
  }
  Batch batch = BatchOfTexts(texts, begin);
  batch["desirable"] = at::tensor(labels, at::kLong);
  return batch;
}

void ExpectTrlsAnswers(const char* name, dpo::Config config) {
  const Json wanted =
      ReadJson("tests/golden/testdata/reward/golden.json")[name];
  const std::string path = ::testing::TempDir() + "/" + name + ".reference";
  MakeReference(path, config.loss(), AnswersOf);
  config.set_beta(0.2);
  config.set_reference(path);
  auto objective = dpo::Dpo::Create(config);
  ASSERT_TRUE(objective.ok()) << objective.status();
  Trained run(Llama(""), 1e-3);
  ASSERT_TRUE((*objective)->Check(run.model(), Pairs(/*labelled=*/true)).ok());
  PlainRunner runner;
  for (int64_t step = 0; step < 10; ++step) {
    std::vector<Batch> batches = {AnswersOf(step * kPairsAStep)};
    if ((*objective)->has_rollouts()) {
      const at::NoGradGuard no_grad;
      ASSERT_TRUE(
          (*objective)->Rollout(run.model(), &batches, {}, runner).ok());
    }
    const LossSum loss = run.Step(**objective, batches[0],
                                  (*objective)->StepTotals(batches[0], {}));
    EXPECT_NEAR(loss.sum.item<double>() / kPairsAStep,
                wanted["losses"][step].get<double>(), step == 0 ? 1e-5 : 1e-4)
        << name << ", step " << step + 1;
    const std::vector<MetricTags> tags = (*objective)->metrics();
    for (size_t i = 0; i < tags.size(); ++i) {
      const std::string metric = tags[i].train.substr(sizeof("train/") - 1);
      const Json& value = wanted["metrics"][metric][step];
      const at::Tensor row = loss.metrics[static_cast<int64_t>(i)];
      // It has none of a kind of answer that a step lacks.
      ASSERT_EQ(value.is_null(), row[1].item<double>() == 0.0) << metric;
      if (value.is_null()) continue;
      EXPECT_NEAR((row[0] / row[1]).item<double>(), value.get<double>(), 1e-3)
          << name << ", " << metric << ", step " << step + 1;
    }
  }
}

TEST(DpoGoldenTest, TenStepsOfKto) {
  dpo::Config config;
  config.set_loss(dpo::KTO);
  config.set_undesirable_weight(1.5);
  ExpectTrlsAnswers("kto", config);
}

TEST(DpoGoldenTest, TenStepsOfApoZeroWithoutPairs) {
  dpo::Config config;
  config.set_loss(dpo::APO_ZERO_UNPAIRED);
  ExpectTrlsAnswers("apo", config);
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
