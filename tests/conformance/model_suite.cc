// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/random.h"
#include "base/scratch_folder.h"
#include "tests/conformance/model.h"

namespace capstan {
namespace conformance {
namespace {

constexpr uint64_t kSeed = 7;
constexpr int64_t kRows = 2;

// How far float32 results may be from each other that are sums in another
// order, relative to the largest.
constexpr double kRounding = 1e-4;

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = a.to(at::kDouble);
  const double scale = std::max(1.0, wide.abs().max().item<double>());
  return (wide - b.to(at::kDouble)).abs().max().item<double>() / scale;
}

// [kRows, T] tokens of all the vocabulary, T up to 8.
at::Tensor SomeTokens(const TokenModel& model) {
  const int64_t length = std::min<int64_t>(8, model.max_positions());
  return at::arange(kRows * length, at::kLong)
      .mul_(7919)
      .add_(3)
      .remainder(model.vocab_size())
      .view({kRows, length});
}

// The next token; the last position of each row has no target.
TokenTargets NextTokens(const at::Tensor& tokens) {
  TokenTargets targets;
  targets.tokens = tokens.roll(-1, 1);
  targets.tokens.select(1, tokens.size(1) - 1).fill_(-100);
  return targets;
}

at::Tensor LossOf(Model& model, UnitRunner& runner) {
  TokenModel& tokens = *model.token_model();
  TokenInput input;
  input.tokens = SomeTokens(tokens);
  return tokens.CrossEntropySum(input, NextTokens(input.tokens), runner);
}

at::Tensor LogitsOf(TokenModel& model, const at::Tensor& tokens,
                    const at::Tensor& positions = {}) {
  const at::NoGradGuard no_grad;
  PlainRunner runner;
  TokenInput input;
  input.tokens = tokens;
  input.positions = positions;
  return model.Logits(input, runner);
}

// Has parameters hold their values only within units that use them, as a
// strategy does that gathers them.
class GatheringRunner final : public UnitRunner {
 public:
  GatheringRunner(const Model& model, const std::vector<at::Tensor>& bound)
      : model_(model), bound_(bound) {
    for (const at::Tensor& tensor : bound) {
      values_.push_back(tensor.detach().clone());
    }
    for (size_t i = 0; i < bound.size(); ++i) Free(i);
  }

  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override {
    ran.push_back(unit);
    std::vector<size_t> used;
    for (size_t i = 0; i < bound_.size(); ++i) {
      const ParameterSpec& spec = model_.parameters()[i];
      if (spec.unit == unit || std::count(spec.other_units.begin(),
                                          spec.other_units.end(), unit) > 0) {
        bound_[i].detach().copy_(values_[i]);
        used.push_back(i);
      }
    }
    const at::Tensor output = body(input).clone();
    for (const size_t i : used) Free(i);
    return output;
  }

  std::vector<int> ran;

 private:
  void Free(size_t i) {
    const at::Tensor tensor = bound_[i].detach();
    if (at::isFloatingType(tensor.scalar_type())) {
      tensor.fill_(std::numeric_limits<double>::quiet_NaN());
    } else {
      tensor.fill_(255);
    }
  }

  const Model& model_;
  const std::vector<at::Tensor>& bound_;
  std::vector<at::Tensor> values_;
};

// Runs each body twice, as activation checkpointing does.
class TwiceRunner final : public UnitRunner {
 public:
  at::Tensor Run(int, const at::Tensor& input, const Body& body) override {
    {
      const at::NoGradGuard no_grad;
      body(input);
    }
    return body(input);
  }
};

TEST_P(ModelConformance, ParametersAreDeclaredOnceInUnitsThatExist) {
  const std::vector<ParameterSpec>& specs = model().parameters();
  const auto units = static_cast<int>(model().units().size());
  ASSERT_FALSE(specs.empty());
  ASSERT_GT(units, 0);
  std::set<std::string> names;
  for (const ParameterSpec& spec : specs) {
    SCOPED_TRACE(spec.name);
    EXPECT_TRUE(names.insert(spec.name).second) << "declared twice";
    EXPECT_GT(spec.numel(), 0);
    EXPECT_TRUE(spec.unit >= 0 && spec.unit < units) << "unit " << spec.unit;
    int before = spec.unit;
    for (const int other : spec.other_units) {
      EXPECT_TRUE(other > before && other < units) << "other unit " << other;
      before = other;
    }
  }
  const std::unique_ptr<Model> again = New();
  ASSERT_EQ(again->parameters().size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(again->parameters()[i].name, specs[i].name);
    EXPECT_EQ(again->parameters()[i].shape, specs[i].shape);
  }
}

// Ranks write their slices, several threads at once.
TEST_P(ModelConformance, InitialValuesAreTheSameInPieces) {
  const std::unique_ptr<Model> other = New();
  for (size_t i = 0; i < model().parameters().size(); ++i) {
    SCOPED_TRACE(model().parameters()[i].name);
    const auto index = static_cast<int>(i);
    const int64_t numel = model().parameters()[i].numel();
    // What follows a slice is another one's.
    constexpr float kOthers = -77.0f;
    std::vector<float> first(numel + 1, kOthers);
    const int64_t half = numel / 2;
    ASSERT_TRUE(model().InitialValue(index, kSeed, 0, half, first.data()).ok());
    EXPECT_TRUE(std::all_of(first.begin() + half, first.end(), [](float x) {
      return x == kOthers;
    })) << "InitialValue writes more than `count` values";
    std::vector<float> whole(numel), pieces(numel);
    ASSERT_TRUE(
        model().InitialValue(index, kSeed, 0, numel, whole.data()).ok());
    EXPECT_TRUE(std::all_of(whole.begin(), whole.end(),
                            [](float x) { return std::isfinite(x); }));
    constexpr int kThreads = 3;
    const int64_t piece = numel / (2 * kThreads) + 1;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t at = t * piece; at < numel; at += kThreads * piece) {
          other
              ->InitialValue(index, kSeed, at, std::min(piece, numel - at),
                             pieces.data() + at)
              .IgnoreError();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(pieces, whole);
  }
}

TEST_P(ModelConformance, SaveConfigWritesConfigJson) {
  const ScratchFolder folder;
  ASSERT_TRUE(model().SaveConfig(folder.path(), c10::ScalarType::Float).ok());
  std::ifstream file(folder.path() + "/config.json");
  const auto json =
      nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << "no JSON object";
}

TEST_P(ModelConformance, PlansEachUnit) {
  const std::vector<UnitMemory> plan =
      model().PlanUnits(kRows, 8, c10::ScalarType::Float);
  if (plan.empty()) GTEST_SKIP() << "plans nothing";
  ASSERT_EQ(plan.size(), model().units().size());
  for (const UnitMemory& unit : plan) {
    EXPECT_GE(unit.kept, unit.output);
    EXPECT_GE(unit.output, 0);
    EXPECT_GE(unit.forward_workspace, 0);
    EXPECT_GE(unit.logits_kept, 0);
    EXPECT_GE(unit.logits_passing, 0);
  }
}

TEST_P(ModelConformance, UsesParametersOnlyInTheirUnits) {
  if (model().token_model() == nullptr) GTEST_SKIP() << "no token model";
  const at::NoGradGuard no_grad;
  const std::unique_ptr<Model> plain = NewBound();
  PlainRunner plain_runner;
  const double want = LossOf(*plain, plain_runner).item<double>();
  const std::unique_ptr<Model> gathered = New();
  const std::vector<at::Tensor> bound = Values(*gathered);
  GatheringRunner runner(*gathered, bound);
  gathered->Bind(bound);
  EXPECT_EQ(LossOf(*gathered, runner).item<double>(), want)
      << "a parameter is read outside of the units that it is declared for";
  EXPECT_TRUE(std::is_sorted(runner.ran.begin(), runner.ran.end()))
      << "units run out of order";
  EXPECT_EQ(std::set<int>(runner.ran.begin(), runner.ran.end()).size(),
            runner.ran.size())
      << "a unit runs twice";
}

TEST_P(ModelConformance, ABodyMayRunAgain) {
  if (model().token_model() == nullptr) GTEST_SKIP() << "no token model";
  const std::unique_ptr<Model> one = NewBound();
  PlainRunner plain;
  TwiceRunner twice;
  const double want = LossOf(*one, plain).item<double>();
  EXPECT_EQ(LossOf(*one, twice).item<double>(), want);
}

TEST_P(ModelConformance, GradientsAreThoseOfTheLoss) {
  if (model().token_model() == nullptr) GTEST_SKIP() << "no token model";
  const std::unique_ptr<Model> one = New();
  std::vector<at::Tensor> bound = Values(*one);
  one->Bind(bound);
  PlainRunner runner;
  const at::Tensor loss = LossOf(*one, runner);
  ASSERT_TRUE(loss.requires_grad());
  torch::autograd::backward({loss}, {at::ones_like(loss)});
  const at::NoGradGuard no_grad;
  // Along each gradient, and where there is none along a random direction: a
  // gradient that is missing is found where the loss changes.
  for (size_t i = 0; i < bound.size(); ++i) {
    const ParameterSpec& spec = one->parameters()[i];
    if (!spec.trainable) continue;
    SCOPED_TRACE(spec.name);
    const at::Tensor& gradient = bound[i].grad();
    at::Tensor direction = at::empty(spec.shape, at::kFloat);
    FillNormal(RandomKey(kSeed, spec.name), 0, spec.numel(), 0.0f, 1.0f,
               direction.mutable_data_ptr<float>());
    const bool none =
        !gradient.defined() || gradient.abs().max().item<double>() == 0.0;
    if (!none) direction = gradient.clone();
    direction.div_(direction.norm());
    const double wanted =
        none ? 0.0 : (gradient * direction).sum().item<double>();
    const at::Tensor value = bound[i].detach();
    const at::Tensor before = value.clone();
    const double step = 1e-2 * std::max(0.1, before.norm().item<double>());
    const auto loss_at = [&](double by) {
      value.copy_(before + direction * by);
      return LossOf(*one, runner).item<double>();
    };
    const double found = (loss_at(step) - loss_at(-step)) / (2.0 * step);
    value.copy_(before);
    // Differences of float32 losses are this far off.
    const double rounding = 1e-6 * std::abs(loss.item<double>()) / step;
    EXPECT_NEAR(wanted, found, 0.1 * std::abs(found) + rounding);
  }
}

TEST_P(ModelConformance, TheLossIsThatOfTheLogits) {
  TokenModel* const declared = model().token_model();
  if (declared == nullptr) GTEST_SKIP() << "no token model";
  const std::unique_ptr<Model> one = NewBound();
  TokenModel& tokens = *one->token_model();
  TokenInput input;
  input.tokens = SomeTokens(tokens);
  const int64_t length = input.tokens.size(1);
  const at::Tensor logits = LogitsOf(tokens, input.tokens);
  ASSERT_EQ(logits.sizes(),
            at::IntArrayRef({kRows, length, tokens.vocab_size()}));
  TokenTargets targets = NextTokens(input.tokens);
  targets.tokens.select(1, 0).fill_(-1);  // any negative number
  targets.weights =
      at::arange(kRows * length, at::kFloat).view({kRows, length}).add_(0.5);
  const at::Tensor chosen =
      at::log_softmax(logits.to(at::kDouble), -1)
          .gather(2, targets.tokens.clamp_min(0).unsqueeze(2))
          .squeeze(2);
  const double want =
      -(chosen * targets.weights * targets.tokens.ge(0)).sum().item<double>();
  PlainRunner runner;
  const at::Tensor loss = tokens.CrossEntropySum(input, targets, runner);
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_TRUE(loss.requires_grad());
  EXPECT_NEAR(loss.item<double>(), want, kRounding * std::abs(want));
  EXPECT_LE(MaxDifference(tokens.LastLogits(input, runner).detach(),
                          logits.narrow(1, length - 1, 1)),
            kRounding)
      << "the last position's logits alone";
}

TEST_P(ModelConformance, RowsAndDocumentsDontSeeEachOther) {
  if (model().token_model() == nullptr) GTEST_SKIP() << "no token model";
  const std::unique_ptr<Model> one = NewBound();
  TokenModel& tokens = *one->token_model();
  const at::Tensor text = SomeTokens(tokens);
  const at::Tensor whole = LogitsOf(tokens, text);
  for (int64_t row = 0; row < kRows; ++row) {
    EXPECT_LE(MaxDifference(LogitsOf(tokens, text.narrow(0, row, 1)),
                            whole.narrow(0, row, 1)),
              kRounding)
        << "row " << row << " alone";
  }
  const int64_t half = text.size(1) / 2;
  if (half == 0) return;
  const at::Tensor first = text.narrow(0, 0, 1).narrow(1, 0, half);
  const at::Tensor second = text.narrow(0, 1, 1).narrow(1, 0, half);
  const at::Tensor count = at::arange(half, at::kLong).unsqueeze(0);
  const at::Tensor packed =
      LogitsOf(tokens, at::cat({first, second}, 1), at::cat({count, count}, 1));
  EXPECT_LE(
      MaxDifference(packed, at::cat({LogitsOf(tokens, first.contiguous()),
                                     LogitsOf(tokens, second.contiguous())},
                                    1)),
      kRounding)
      << "two documents in a row, by TokenInput::positions";
}

TEST_P(ModelConformance, ACausalModelDoesntSeeWhatComes) {
  TokenModel* const declared = model().token_model();
  if (declared == nullptr) GTEST_SKIP() << "no token model";
  if (!declared->causal()) GTEST_SKIP() << "not causal";
  const std::unique_ptr<Model> one = NewBound();
  TokenModel& tokens = *one->token_model();
  const at::Tensor text = SomeTokens(tokens);
  const int64_t before = text.size(1) - 1;
  at::Tensor other = text.clone();
  other.select(1, before).add_(1).remainder_(tokens.vocab_size());
  EXPECT_LE(MaxDifference(LogitsOf(tokens, other).narrow(1, 0, before),
                          LogitsOf(tokens, text).narrow(1, 0, before)),
            kRounding);
}

TEST_P(ModelConformance, ACacheChangesNothing) {
  TokenModel* const declared = model().token_model();
  if (declared == nullptr) GTEST_SKIP() << "no token model";
  if (!declared->causal()) GTEST_SKIP() << "not causal";
  const std::unique_ptr<Model> one = NewBound();
  TokenModel& tokens = *one->token_model();
  const at::NoGradGuard no_grad;
  PlainRunner runner;
  const at::Tensor text = SomeTokens(tokens).narrow(0, 0, 1);
  const int64_t length = text.size(1);
  const at::Tensor whole = LogitsOf(tokens, text);
  auto cache = tokens.NewCache(1, length);
  if (absl::IsUnimplemented(cache.status())) GTEST_SKIP() << cache.status();
  ASSERT_TRUE(cache.ok()) << cache.status();
  // The prompt, then token by token.
  for (int64_t at = 0; at < length;) {
    const int64_t count = at == 0 ? std::max<int64_t>(1, length / 2) : 1;
    TokenInput input;
    input.tokens = text.narrow(1, at, count).contiguous();
    input.cache = cache->get();
    const at::Tensor logits = tokens.Logits(input, runner);
    EXPECT_LE(MaxDifference(logits, whole.narrow(1, at, count)), kRounding)
        << "tokens " << at << " to " << at + count - 1;
    at += count;
    EXPECT_EQ((*cache)->length(), at);
  }
}

TEST_P(ModelConformance, Bfloat16IsNear) {
  if (model().token_model() == nullptr) GTEST_SKIP() << "no token model";
  const std::unique_ptr<Model> wide = NewBound();
  const std::unique_ptr<Model> narrow = NewBound(c10::ScalarType::BFloat16);
  PlainRunner runner;
  const double want = LossOf(*wide, runner).item<double>();
  const at::Tensor loss = LossOf(*narrow, runner);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), want, 0.05 * std::abs(want));
  TokenModel& tokens = *narrow->token_model();
  EXPECT_EQ(LogitsOf(tokens, SomeTokens(tokens)).scalar_type(), at::kBFloat16);
}

// What it has gathered beside its parameters.
std::string StateAfterTraining(Model& model) {
  PlainRunner runner;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor loss = LossOf(model, runner);
    if (loss.requires_grad()) {
      torch::autograd::backward({loss}, {at::ones_like(loss)});
    }
  }
  return model.SaveState();
}

TEST_P(ModelConformance, AnotherInstanceHasItsState) {
  if (model().token_model() == nullptr) GTEST_SKIP() << "no token model";
  const std::unique_ptr<Model> one = NewBound();
  const std::string state = StateAfterTraining(*one);
  if (state.empty()) GTEST_SKIP() << "no state";
  EXPECT_EQ(one->SaveState(), state) << "to save it changes it";
  const std::unique_ptr<Model> other = NewBound();
  const absl::Status restored = other->RestoreState(state);
  ASSERT_TRUE(restored.ok()) << restored;
  EXPECT_EQ(other->SaveState(), state);
  PlainRunner runner;
  EXPECT_EQ(LossOf(*other, runner).item<double>(),
            LossOf(*one, runner).item<double>());
  EXPECT_EQ(other->SaveState(), one->SaveState());
}

TEST_P(ModelConformance, AStateThatCannotBeReadIsAnError) {
  for (const std::string& garbage :
       {std::string("garbage"), std::string(37, '\xff')}) {
    EXPECT_FALSE(New()->RestoreState(garbage).ok());
  }
  if (model().token_model() == nullptr) GTEST_SKIP() << "no token model";
  const std::string state = StateAfterTraining(*NewBound());
  // Some formats can't tell, but none may crash.
  for (size_t length = 1; length < state.size();
       length += 1 + state.size() / 16) {
    New()->RestoreState(state.substr(0, length)).IgnoreError();
  }
}

}  // namespace

std::vector<at::Tensor> ModelConformance::Values(const Model& model,
                                                 c10::ScalarType dtype) {
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const ParameterSpec& spec = model.parameters()[i];
    const auto index = static_cast<int>(i);
    if (const int64_t bytes = model.PackedBytes(index); bytes > 0) {
      values.push_back(at::empty({bytes}, at::kByte));
      EXPECT_TRUE(model
                      .PackedValue(index, 0, bytes,
                                   values[i].mutable_data_ptr<uint8_t>())
                      .ok());
      continue;
    }
    const at::Tensor value = at::empty(spec.shape, at::kFloat);
    EXPECT_TRUE(model
                    .InitialValue(index, kSeed, 0, spec.numel(),
                                  value.mutable_data_ptr<float>())
                    .ok());
    values.push_back(value.to(dtype).set_requires_grad(spec.trainable));
  }
  return values;
}

std::unique_ptr<Model> ModelConformance::NewBound(c10::ScalarType dtype) const {
  std::unique_ptr<Model> made = New();
  if (made != nullptr) made->Bind(Values(*made, dtype));
  return made;
}

}  // namespace conformance
}  // namespace capstan
