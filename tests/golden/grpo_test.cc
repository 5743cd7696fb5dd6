// SPDX-License-Identifier: Apache-2.0
//
// Ten steps of the Llama on given answers and rewards against TRL, for each
// loss: testdata/grpo/steps.json holds what TRL 1.16.0 with torch 2.11.0
// computed in float32 on the CPU (make_grpo.py).
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plugins/grpo/objective/advantages.h"
#include "plugins/grpo/objective/losses.h"
#include "plugins/model/llama/llama.h"
#include "plugins/sdk/token_model.h"
#include "tests/golden/gradient_norm.h"
#include "tests/golden/pair_golden.h"

namespace capstan {
namespace {

using grpo::Config;

constexpr double kLearningRate = 2e-4;

const Json& Grpo() {
  static const Json golden = ReadJson("tests/golden/testdata/grpo/steps.json");
  return golden;
}

// What a run's settings are in ours.
Config ConfigOf(const Json& settings) {
  static const std::map<std::string, grpo::Loss> losses = {
      {"dapo", grpo::DAPO},       {"grpo", grpo::GRPO},   {"bnpo", grpo::DAPO},
      {"dr_grpo", grpo::DR_GRPO}, {"cispo", grpo::CISPO}, {"sapo", grpo::SAPO},
      {"luspo", grpo::LUSPO},     {"vespo", grpo::VESPO}};
  static const std::map<std::string, grpo::Advantage> advantages = {
      {"group", grpo::GROUP_STD},
      {"batch", grpo::BATCH_STD},
      {"none", grpo::GROUP_MEAN}};
  Config config;
  config.set_loss(losses.at(settings["loss_type"]));
  config.set_advantage(advantages.at(settings.value("scale_rewards", "group")));
  config.set_num_generations(Grpo()["num_generations"]);
  config.set_max_new_tokens(Grpo()["max_new_tokens"]);
  config.set_updates_per_rollout(settings.value("num_iterations", 2));
  config.set_beta(settings.value("beta", 0.0));
  config.set_unbiased_kl(settings.value("use_bias_correction_kl", true));
  config.set_clip_most(settings.value("delta", 0.0));
  config.set_sequence_ratios(
      settings.value("importance_sampling_level", "token") == "sequence");
  config.set_temperature(settings.value("temperature", 1.0));
  config.set_mask_truncated(
      settings.value("mask_truncated_completions", false));
  if (settings.contains("epsilon")) config.set_clip_low(settings["epsilon"]);
  if (settings.contains("epsilon_high")) {
    const double high = settings["epsilon_high"];
    config.set_clip_high(config.loss() == grpo::CISPO ? high - 1.0 : high);
  }
  return config;
}

std::unique_ptr<Model> Llama() {
  llama::Config config;
  config.set_pretrained(kBase);
  auto model = llama::Llama::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

constexpr int64_t kRows = 8;  // of a step

// A rollout's answers behind their prompts.
struct Rollout {
  at::Tensor tokens;   // [kRows, T]
  at::Tensor targets;  // [kRows, T], those of the answers
  std::vector<double> rewards;
  std::vector<bool> truncated;
};

Rollout RolloutOf(int64_t index) {
  Rollout rollout;
  rollout.tokens = at::full({kRows, 15}, 0, at::kLong);
  rollout.targets = at::full({kRows, 15}, -100, at::kLong);
  const int64_t group = Grpo()["num_generations"];
  for (int64_t row = 0; row < kRows; ++row) {
    const Json& prompt = Grpo()["prompts"][(index * kRows + row) / group];
    const Json& answer = prompt["answers"][row % group];
    std::vector<int64_t> text = prompt["prompt"];
    const size_t begin = text.size();
    for (const int64_t id : answer["ids"]) text.push_back(id);
    for (size_t t = 0; t < text.size(); ++t) {
      const auto at = static_cast<int64_t>(t);
      rollout.tokens[row][at] = text[t];
      if (t >= begin) rollout.targets[row][at - 1] = text[t];
    }
    rollout.rewards.push_back(answer["reward"].is_null()
                                  ? std::numeric_limits<double>::quiet_NaN()
                                  : answer["reward"].get<double>());
    rollout.truncated.push_back(text.back() != 2);
  }
  return rollout;
}

// What the policy gradient is of, but for the log-probabilities under the model
// as it is.
grpo::AnswerTokens AnswersOf(const Config& config, const Rollout& rollout) {
  grpo::AnswerTokens answers;
  answers.mask = rollout.targets.ge(0);
  for (int64_t row = 0; row < kRows; ++row) {
    if (config.mask_truncated() && rollout.truncated[row]) {
      answers.mask[row].fill_(false);
    }
  }
  answers.advantages =
      at::tensor(grpo::AdvantagesOf(config.advantage(),
                                    config.num_generations(), rollout.rewards),
                 at::kFloat);
  return answers;
}

at::Tensor LogProbs(Model& model, const Config& config, const Rollout& rollout,
                    at::Tensor* entropies = nullptr) {
  TokenInput input;
  input.tokens = rollout.tokens;
  PlainRunner runner;
  return model.token_model()->row_losses()->TokenLogProbs(
      input, rollout.targets, config.temperature(), entropies, runner);
}

// Nothing if TRL has none.
void ExpectTokens(const at::Tensor& logps, const Rollout& rollout,
                  const Json& wanted) {
  if (wanted.is_null()) return;
  for (int64_t row = 0; row < kRows; ++row) {
    const at::Tensor got = logps[row].masked_select(rollout.targets[row].ge(0));
    const at::Tensor there =
        at::tensor(wanted[row].get<std::vector<float>>(), at::kFloat);
    EXPECT_LT((got - there).abs().max().item<double>(), 1e-5)
        << "answer " << row;
  }
}

// Of a parameter, as make_grpo.py has it.
double Projection(const at::Tensor& parameter) {
  const at::Tensor flat = parameter.detach().to(at::kDouble).flatten();
  return flat.dot((at::arange(flat.numel(), at::kDouble) + 1.0).sin())
      .item<double>();
}

void ExpectTrlsMetrics(const grpo::LossOptions& options,
                       const at::Tensor& metrics, const Json& wanted,
                       int64_t step) {
  const std::vector<std::string> names = grpo::MetricNames(options);
  for (const auto& [name, values] : wanted.items()) {
    const std::string ours =
        name == "cispo_clip_ratio" ? "clip_ratio/high_mean" : name;
    const auto found = std::find(names.begin(), names.end(), ours);
    ASSERT_NE(found, names.end()) << name;
    const at::Tensor row = metrics[found - names.begin()];
    EXPECT_NEAR((row[0] / row[1]).item<double>(), values[step].get<double>(),
                1e-5)
        << name;
  }
}

// The place of one of our parameters among TRL's.
size_t PlaceOf(Trained& run, size_t i) {
  const Json& names = Grpo()["parameters"];
  const std::string& name = run.model().parameters()[i].name;
  const auto found = std::find(names.begin(), names.end(), name);
  EXPECT_NE(found, names.end()) << name;
  return found - names.begin();
}

// Each parameter's gradient, by one number and by all of them together.
void ExpectTrlsGradients(Trained& run, const Json& wanted, int64_t step) {
  const double norm = wanted["gradient_norms"][step];
  EXPECT_NEAR(GradientNorm(run.trained()), norm, 1e-5 * norm);
  for (size_t i = 0; i < run.trained().size(); ++i) {
    EXPECT_NEAR(Projection(run.trained(i).grad()),
                wanted["gradients"][step][PlaceOf(run, i)].get<double>(),
                1e-5 * norm)
        << run.model().parameters()[i].name;
  }
}

void ExpectTrlsSteps(const std::string& name) {
  SCOPED_TRACE(name);
  const Json& wanted = Grpo()["runs"][name];
  const Config config = ConfigOf(wanted["settings"]);
  const absl::StatusOr<grpo::LossOptions> options = grpo::LossOptionsOf(config);
  ASSERT_TRUE(options.ok()) << options.status();
  Trained run(Llama(), kLearningRate), start(Llama(), kLearningRate);
  ASSERT_EQ(run.trained().size(), Grpo()["parameters"].size());
  const int64_t updates = config.updates_per_rollout();
  at::Tensor old_logps, reference;
  for (int64_t step = 0; step < 10; ++step) {
    SCOPED_TRACE(step + 1);
    const Rollout rollout = RolloutOf(step / updates);
    grpo::AnswerTokens answers = AnswersOf(config, rollout);
    if (step % updates == 0) {
      const at::NoGradGuard no_grad;
      const Json& theirs = wanted["rollouts"][step / updates];
      old_logps = LogProbs(run.model(), config, rollout);
      ExpectTokens(old_logps, rollout, theirs["old_logps"]);
      reference = LogProbs(start.model(), config, rollout);
      ExpectTokens(reference, rollout, theirs["reference"]);
    }
    answers.old_logps = old_logps;
    answers.reference = reference;
    answers.logps = LogProbs(run.model(), config, rollout, &answers.entropies);
    const grpo::AnswersLoss loss = LossOf(*options, answers);
    const at::Tensor mean =
        loss.sum /
        grpo::LossCount(*options, kRows, answers.mask.sum().item<int64_t>());
    mean.backward();
    EXPECT_NEAR(mean.item<double>(), wanted["losses"][step].get<double>(),
                1e-5);
    ExpectTrlsGradients(run, wanted, step);
    ExpectTrlsMetrics(*options, loss.metrics, wanted["metrics"], step);
    run.Update();
  }
  for (size_t i = 0; i < run.trained().size(); ++i) {
    EXPECT_NEAR(Projection(run.trained(i)),
                wanted["parameters"][PlaceOf(run, i)].get<double>(), 2e-5)
        << run.model().parameters()[i].name;
  }
}

TEST(GrpoGoldenTest, TenStepsOfEachRun) {
  ASSERT_EQ(Grpo()["runs"].size(), 12u);
  for (const auto& run : Grpo()["runs"].items()) ExpectTrlsSteps(run.key());
}

}  // namespace
}  // namespace capstan
