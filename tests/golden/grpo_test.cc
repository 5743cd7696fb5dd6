// SPDX-License-Identifier: Apache-2.0
//
// Ten steps of the Llama on given answers and rewards against TRL, for each
// loss: testdata/grpo/steps.json holds what TRL 1.16.0 with torch 2.11.0
// computed in float32 on the CPU (make_grpo.py).
#include "plugins/grpo/objective/grpo.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plugins/grpo/objective/advantages.h"
#include "plugins/grpo/objective/rollouts.h"
#include "plugins/model/llama/llama.h"
#include "plugins/objective/common/token_objective.h"
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
  config.add_reward()->mutable_exact_match();
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

// Given answers as if they had been sampled, without log-probabilities.
std::vector<grpo::Rollout> RolloutsOf(const Config& config, int64_t index,
                                      size_t metrics) {
  const int64_t group = config.num_generations();
  std::vector<grpo::Rollout> rollouts(kRows);
  std::vector<double> rewards;
  for (int64_t row = 0; row < kRows; ++row) {
    const Json& prompt = Grpo()["prompts"][(index * kRows + row) / group];
    const Json& answer = prompt["answers"][row % group];
    grpo::Rollout& rollout = rollouts[row];
    rollout.text = prompt["prompt"].get<std::vector<int64_t>>();
    rollout.prompt = static_cast<int64_t>(rollout.text.size());
    for (const int64_t id : answer["ids"]) rollout.text.push_back(id);
    constexpr int64_t kEos = 2;
    rollout.truncated = rollout.text.back() != kEos;
    rollout.metrics.assign(metrics, 0.0);
    const Json& reward = answer["reward"];
    rewards.push_back(reward.is_null()
                          ? std::numeric_limits<double>::quiet_NaN()
                          : reward.get<double>());
  }
  const std::vector<double> advantages =
      grpo::AdvantagesOf(config.advantage(), group, rewards);
  for (int64_t row = 0; row < kRows; ++row) {
    rollouts[row].advantage = advantages[row];
  }
  return rollouts;
}

Batch BatchOf(const std::vector<grpo::Rollout>& rollouts) {
  std::vector<const grpo::Rollout*> rows;
  for (const grpo::Rollout& rollout : rollouts) rows.push_back(&rollout);
  return grpo::BatchOf(rows, at::kCPU);
}

// Sets the answers' log-probabilities, of which TRL has written some down.
void SetLogProbs(Model& model, const Config& config, const Json& wanted,
                 std::vector<float> grpo::Rollout::*where,
                 std::vector<grpo::Rollout>* rollouts) {
  const at::NoGradGuard no_grad;
  const Batch batch = BatchOf(*rollouts);
  TokenInput input;
  input.tokens = batch.at(kInputIds);
  PlainRunner runner;
  const at::Tensor found = model.token_model()->row_losses()->TokenLogProbs(
      input, NextOf(batch.at(kLabels), kIgnoredTarget), config.temperature(),
      nullptr, runner);
  for (int64_t row = 0; row < kRows; ++row) {
    grpo::Rollout& rollout = (*rollouts)[row];
    std::vector<float>& values = rollout.*where;
    for (int64_t t = 0; t < rollout.answer(); ++t) {
      values.push_back(found[row][rollout.prompt - 1 + t].item<float>());
      if (wanted.is_null()) continue;
      EXPECT_NEAR(values.back(), wanted[row][t].get<float>(), 1e-5)
          << "answer " << row << ", token " << t;
    }
  }
}

// Of a parameter, as make_grpo.py has it.
double Projection(const at::Tensor& parameter) {
  const at::Tensor flat = parameter.detach().to(at::kDouble).flatten();
  return flat.dot((at::arange(flat.numel(), at::kDouble) + 1.0).sin())
      .item<double>();
}

size_t PlaceOf(const grpo::Grpo& objective, const std::string& metric) {
  const std::vector<MetricTags> tags = objective.metrics();
  const auto found = std::find_if(
      tags.begin(), tags.end(),
      [&](const MetricTags& tag) { return tag.train == "train/" + metric; });
  EXPECT_NE(found, tags.end()) << metric;
  return found - tags.begin();
}

void ExpectTrlsMetrics(const grpo::Grpo& objective, const at::Tensor& metrics,
                       const Json& wanted, int64_t step) {
  for (const auto& [name, values] : wanted.items()) {
    const size_t place = PlaceOf(
        objective, name == "cispo_clip_ratio" ? "clip_ratio/high_mean" : name);
    ASSERT_LT(place, static_cast<size_t>(metrics.size(0)));
    const at::Tensor row = metrics[static_cast<int64_t>(place)];
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
  auto objective = grpo::Grpo::Create(config);
  ASSERT_TRUE(objective.ok()) << objective.status();
  // Those of answers come before those of losses.
  const size_t answer_metrics = PlaceOf(**objective, "entropy");
  Trained run(Llama(), kLearningRate), start(Llama(), kLearningRate);
  ASSERT_EQ(run.trained().size(), Grpo()["parameters"].size());
  std::vector<grpo::Rollout> rollouts;
  StepInfo info;
  info.training = true;
  PlainRunner runner;
  for (int64_t step = 0; step < 10; ++step) {
    SCOPED_TRACE(step + 1);
    if (step % config.updates_per_rollout() == 0) {
      const int64_t index = step / config.updates_per_rollout();
      const Json& theirs = wanted["rollouts"][index];
      rollouts = RolloutsOf(config, index, answer_metrics);
      SetLogProbs(run.model(), config, theirs["old_logps"],
                  &grpo::Rollout::log_probs, &rollouts);
      if (config.beta() > 0.0) {
        SetLogProbs(start.model(), config, theirs["reference"],
                    &grpo::Rollout::reference, &rollouts);
      }
    }
    const LossSum loss =
        (*objective)->Compute(run.model(), BatchOf(rollouts), info, runner);
    const at::Tensor mean = loss.sum / static_cast<double>(loss.count);
    mean.backward();
    EXPECT_NEAR(mean.item<double>(), wanted["losses"][step].get<double>(),
                1e-5);
    ExpectTrlsGradients(run, wanted, step);
    ExpectTrlsMetrics(**objective, loss.metrics, wanted["metrics"], step);
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
