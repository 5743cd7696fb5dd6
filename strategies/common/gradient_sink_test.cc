// SPDX-License-Identifier: Apache-2.0
//
// Gradients that backward writes into the buckets itself, alone and mixed with
// others, for parameters used several times in one or several graphs.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "strategies/common/flat_layout.h"
#include "strategies/common/gradient_buckets.h"

namespace capstan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One use of a parameter w: factor * sum(w), so its gradient is `factor`.
struct Use {
  int parameter = 0;
  double factor = 1.0;
  GradientSink* sink = nullptr;  // null: the gradient is a tensor of its own
  bool recomputed = false;       // in a graph of its own, made in backward
  bool throws = false;           // between Open and the return
  WideGradientSink* wide = nullptr;  // instead of sink
};

struct KeptUse : public torch::CustomClassHolder {
  KeptUse(const Use& use, const at::Tensor& weight)
      : use(use), weight(weight) {}
  const Use use;
  const at::Tensor weight;
};

c10::intrusive_ptr<KeptUse> Kept(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<KeptUse>(
      ctx->saved_data["use"].toCapsule());
}

class UseFunction : public torch::autograd::Function<UseFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight,
                            const c10::intrusive_ptr<KeptUse>& kept) {
    ctx->saved_data["use"] = c10::IValue::make_capsule(kept);
    return weight.sum() * kept->use.factor;
  }

  static variable_list backward(AutogradContext* ctx, variable_list) {
    const auto kept = Kept(ctx);
    const Use& use = kept->use;
    GradientSink::Place place;
    if (use.sink != nullptr) place = use.sink->Open(use.parameter);
    if (use.wide != nullptr) place = use.wide->OpenWide(use.parameter);
    if (use.throws) throw std::runtime_error("the test's fault");
    if (!place.gradient.defined()) {
      return {at::full_like(kept->weight, use.factor), at::Tensor()};
    }
    if (place.add) {
      place.gradient.add_(use.factor);
    } else {
      place.gradient.fill_(use.factor);
    }
    if (use.wide != nullptr) return {at::Tensor(), at::Tensor()};
    return {std::move(place.gradient), at::Tensor()};
  }
};

// Reruns a unit, as activation checkpointing does.
class RecomputedUse : public torch::autograd::Function<RecomputedUse> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& marker,
                            const c10::intrusive_ptr<KeptUse>& kept) {
    ctx->saved_data["use"] = c10::IValue::make_capsule(kept);
    return marker.sum();
  }

  static variable_list backward(AutogradContext* ctx, variable_list) {
    at::Tensor loss;
    {
      const at::AutoGradMode with_gradients(true);
      loss = UseFunction::apply(Kept(ctx)->weight, Kept(ctx));
    }
    torch::autograd::backward({loss}, {});
    return {at::Tensor(), at::Tensor()};
  }
};

class GradientSinkTest : public ::testing::Test {
 protected:
  // Parameters 0 (tied), 1 and 2 (frozen), 3. One bucket each, or one for all.
  void Make(bool flat, bool one_bucket = false,
            c10::ScalarType dtype = at::kFloat) {
    std::vector<ParameterSpec> specs = {{"tied", {3, 5}, 0, true, {1, 2}},
                                        {"b", {64}, 1, true},
                                        {"frozen", {7}, 1, false},
                                        {"c", {2, 2}, 2, true}};
    parameters_.clear();
    for (const ParameterSpec& spec : specs) {
      parameters_.push_back(at::ones(spec.shape, dtype));
      parameters_.back().set_requires_grad(spec.trainable);
    }
    const FlatLayout layout = LayOut(specs, BackwardOrder(specs, true));
    const int64_t cap = one_bucket ? layout.numel : 1;
    const std::vector<Bucket> buckets = CutBuckets(layout, cap, cap);
    flat_ = at::full({layout.numel}, 99.0, at::kFloat);
    GradientBuckets::Options options;
    if (flat) options.flat = flat_;
    options.on_ready = [this, buckets](int bucket) {
      flat_.narrow(0, buckets[bucket].begin, buckets[bucket].numel())
          .copy_(gradients_->Take(bucket));
      ready_.push_back(bucket);
    };
    gradients_.reset();
    gradients_ = std::make_unique<GradientBuckets>(
        specs, layout, buckets, parameters_, std::move(options));
    layout_ = layout;
    ready_.clear();
  }

  void Backward(const std::vector<Use>& uses) {
    at::Tensor loss = at::zeros({});
    for (const Use& use : uses) {
      const auto kept =
          c10::make_intrusive<KeptUse>(use, parameters_[use.parameter]);
      if (use.recomputed) {
        const at::Tensor marker = at::empty({0}).set_requires_grad(true);
        loss = loss + RecomputedUse::apply(marker, kept);
      } else {
        loss = loss + UseFunction::apply(kept->weight, kept);
      }
    }
    torch::autograd::backward({loss}, {});
  }

  at::Tensor Gradient(int parameter) {
    for (const ParameterRange& range : layout_.ranges) {
      if (range.parameter == parameter) {
        return flat_.narrow(0, range.offset, range.length);
      }
    }
    return at::Tensor();
  }

  void ExpectGradient(int parameter, double value, const std::string& what) {
    const at::Tensor gradient = Gradient(parameter);
    EXPECT_TRUE(at::equal(gradient, at::full_like(gradient, value)))
        << what << ": " << gradient[0].item<float>() << ", not " << value;
  }

  FlatLayout layout_;
  at::Tensor flat_;
  std::vector<at::Tensor> parameters_;
  std::vector<int> ready_;
  std::unique_ptr<GradientBuckets> gradients_;
};

// "NAME ELEMENTS" of the operators run during its lifetime, by first argument.
class OperatorLog {
 public:
  OperatorLog() {
    names().clear();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function)
                                       -> std::unique_ptr<at::ObserverContext> {
          const auto inputs = function.inputs();
          if (!inputs.empty() && inputs[0].isTensor() &&
              inputs[0].toTensor().defined()) {
            names().insert(std::string(function.name()) + " " +
                           std::to_string(inputs[0].toTensor().numel()));
          }
          return nullptr;
        }).needsInputs(true));
  }
  ~OperatorLog() { at::removeCallback(handle_); }
  static std::set<std::string>& names() {
    static auto* names = new std::set<std::string>;
    return *names;
  }

 private:
  at::CallbackHandle handle_;
};

TEST_F(GradientSinkTest, GradientsInPlaceAreNotCopied) {
  Make(/*flat=*/true, /*one_bucket=*/true);
  for (int step = 0; step < 2; ++step) {
    ready_.clear();
    for (int i = 0; i < 3; ++i) {
      gradients_->Begin(i == 0, i == 2);
      const OperatorLog log;
      Backward({{1, 2.0 + i, gradients_.get()}, {3, 5.0, gradients_.get()}});
      for (const char* name : {"aten::copy_ 64", "aten::clone 64"}) {
        EXPECT_EQ(log.names().count(name), 0) << name;
      }
      EXPECT_EQ(log.names().count("aten::fill_ 64"), i == 0);
      EXPECT_EQ(log.names().count("aten::add_ 64"), i > 0);
      EXPECT_FALSE(parameters_[1].grad().defined());
    }
    gradients_->Finish();
    EXPECT_EQ(ready_, std::vector<int>({0}));
    ExpectGradient(1, 9.0, "2 + 3 + 4");
    ExpectGradient(3, 15.0, "3 * 5");
    ExpectGradient(0, 0.0, "no gradient came");
  }
}

// HeldGradients: the work of a held backward is repeated without its code; what
// the code would have noted is put in place.
TEST_F(GradientSinkTest, ARepeatedBackwardNeedsNoCode) {
  for (const bool flat : {true, false}) {
    Make(flat);
    gradients_->Fix();
    gradients_->Begin(/*first=*/true, /*last=*/true);
    gradients_->Hold();
    const std::string before = gradients_->State();
    Backward({{1, 2.0, gradients_.get()}, {3, 5.0}});
    EXPECT_TRUE(ready_.empty()) << "a bucket was reported within a backward";
    const std::string after = gradients_->State();
    EXPECT_NE(after, before);
    const at::Tensor recorded = gradients_->flat().clone();
    gradients_->Finish();
    const std::vector<int> all = ready_;
    EXPECT_EQ(all.size(), gradients_->buckets().size());
    ExpectGradient(1, 2.0, "written");
    ExpectGradient(3, 5.0, "copied");
    ExpectGradient(0, 0.0, "no gradient came");

    ready_.clear();
    gradients_->Begin(/*first=*/true, /*last=*/true);
    gradients_->Hold();
    EXPECT_EQ(gradients_->State(), before);
    gradients_->flat().copy_(recorded * 2);
    gradients_->SetState(after);
    gradients_->Finish();
    EXPECT_EQ(ready_, all);
    ExpectGradient(1, 4.0, "repeated");
    ExpectGradient(3, 10.0, "repeated");
    ExpectGradient(0, 0.0, "no gradient came, again");
  }
}

// Three uses, in every combination, in 3 micro-steps.
TEST_F(GradientSinkTest, ATiedParameterGetsTheSumOfItsUses) {
  for (const bool flat : {true, false}) {
    for (int ways = 0; ways < 4 * 4 * 4; ++ways) {
      Make(flat);
      for (int i = 0; i < 3; ++i) {
        gradients_->Begin(i == 0, i == 2);
        std::vector<Use> uses;
        for (int u = 0; u < 3; ++u) {
          const int way = ways >> (2 * u) & 3;
          uses.push_back({0, (1 << u) * (1.0 + 8 * i),
                          (way & 1) != 0 ? gradients_.get() : nullptr,
                          /*recomputed=*/(way & 2) != 0});
        }
        Backward(uses);
      }
      gradients_->Finish();
      EXPECT_EQ(ready_, std::vector<int>({0, 1, 2}));
      ExpectGradient(0, 7 * (1 + 9 + 17),
                     std::to_string(ways) + (flat ? " flat" : ""));
      ExpectGradient(1, 0.0, "no gradient came");
    }
  }
}

// One unit may also use a parameter twice.
TEST_F(GradientSinkTest, TwoUsesInOneGraph) {
  for (int ways = 0; ways < 4; ++ways) {
    Make(/*flat=*/ways % 2 == 0);
    for (int i = 0; i < 2; ++i) {
      gradients_->Begin(i == 0, i == 1);
      Backward({{1, 2.0, (ways & 1) != 0 ? gradients_.get() : nullptr},
                {1, 4.0, (ways & 2) != 0 ? gradients_.get() : nullptr}});
    }
    gradients_->Finish();
    ExpectGradient(1, 12.0, std::to_string(ways));
  }
}

TEST_F(GradientSinkTest, ABufferOfItsOwnIsGivenAwayEachMicroStep) {
  Make(/*flat=*/false);
  for (int i = 0; i < 3; ++i) {
    ready_.clear();
    gradients_->Begin(/*first=*/true, /*last=*/true);
    Backward({{1, 3.0 + i, gradients_.get(), /*recomputed=*/true},
              {3, 1.0 + i, gradients_.get()}});
    gradients_->Finish();
    EXPECT_EQ(ready_, std::vector<int>({0, 1, 2}));
    ExpectGradient(1, 3.0 + i, "b");
    ExpectGradient(3, 1.0 + i, "c");
    EXPECT_THROW(gradients_->Open(1), c10::Error);
  }
}

TEST_F(GradientSinkTest, NoPlaceForFrozenParametersAndWiderSums) {
  Make(/*flat=*/true);
  gradients_->Begin(true, true);
  EXPECT_FALSE(gradients_->Open(2).gradient.defined());
  EXPECT_FALSE(gradients_->OpenWide(1).gradient.defined()) << "not wider";
  Make(/*flat=*/true, /*one_bucket=*/false, at::kBFloat16);
  gradients_->Begin(true, true);
  EXPECT_FALSE(gradients_->Open(1).gradient.defined());
  EXPECT_FALSE(gradients_->OpenWide(2).gradient.defined()) << "frozen";
  Backward({{1, 3.0, gradients_.get()}});
  gradients_->Finish();
  ExpectGradient(1, 3.0, "b");
}

// Float32 sums of bfloat16 parameters, to which backward writes numbers that
// bfloat16 hasn't.
TEST_F(GradientSinkTest, WideSumsAreWrittenInPlace) {
  Make(/*flat=*/true, /*one_bucket=*/true, at::kBFloat16);
  WideGradientSink* const wide = gradients_.get();
  for (int step = 0; step < 2; ++step) {
    ready_.clear();
    for (int i = 0; i < 3; ++i) {
      gradients_->Begin(i == 0, i == 2);
      const OperatorLog log;
      Backward({{1, 1.0 + 0x1p-20, nullptr, false, false, wide},
                {3, 5.0, nullptr, /*recomputed=*/true, false, wide}});
      for (const char* name : {"aten::copy_ 64", "aten::clone 64"}) {
        EXPECT_EQ(log.names().count(name), 0) << name;
      }
      EXPECT_EQ(log.names().count("aten::fill_ 64"), i == 0);
      EXPECT_EQ(log.names().count("aten::add_ 64"), i > 0);
      EXPECT_FALSE(parameters_[1].grad().defined());
      EXPECT_EQ(ready_.size(), 0) << "one parameter got nothing";
    }
    gradients_->Finish();
    EXPECT_EQ(ready_, std::vector<int>({0}));
    ExpectGradient(1, 3.0 + 3 * 0x1p-20, "3 * 1.000001");
    ExpectGradient(3, 15.0, "3 * 5");
    ExpectGradient(0, 0.0, "no gradient came");
  }
}

TEST_F(GradientSinkTest, ABucketOfWideSumsIsReadyBeforeTheEnd) {
  Make(/*flat=*/false, /*one_bucket=*/false, at::kBFloat16);
  gradients_->Begin(true, false);
  Backward({{1, 2.0, nullptr, false, false, gradients_.get()}});
  EXPECT_EQ(ready_, std::vector<int>());
  gradients_->Begin(false, true);
  Backward({{1, 2.0, nullptr, false, false, gradients_.get()},
            {3, 3.0, nullptr, false, false, gradients_.get()}});
  EXPECT_EQ(ready_, std::vector<int>({0, 1}));
  EXPECT_THROW(gradients_->OpenWide(1), c10::Error) << "it was taken";
  gradients_->Finish();
  ExpectGradient(1, 4.0, "b");
  ExpectGradient(3, 3.0, "c");
}

// Uses of one parameter that write it, and others that return a gradient, in
// one graph and in graphs of their own.
TEST_F(GradientSinkTest, WideAndReturnedGradientsAdd) {
  for (const int parameter : {0, 1}) {
    for (int ways = 0; ways < 4 * 4; ++ways) {
      // A parameter of one unit isn't used by two graphs.
      if (parameter == 1 && (ways & 0b1010) != 0) continue;
      Make(/*flat=*/ways % 3 == 0, /*one_bucket=*/false, at::kBFloat16);
      for (int i = 0; i < 3; ++i) {
        gradients_->Begin(i == 0, i == 2);
        std::vector<Use> uses;
        for (int u = 0; u < 2; ++u) {
          const int way = ways >> (2 * u) & 3;
          uses.push_back({parameter, (1 << u) * (1.0 + 8 * i), nullptr,
                          /*recomputed=*/(way & 2) != 0, false,
                          (way & 1) != 0 ? gradients_.get() : nullptr});
        }
        Backward(uses);
      }
      gradients_->Finish();
      EXPECT_EQ(ready_, std::vector<int>({0, 1, 2}));
      ExpectGradient(parameter, 3 * (1 + 9 + 17), std::to_string(ways));
    }
  }
}

// The step fails, and leaves no trace in the next one.
TEST_F(GradientSinkTest, AnErrorAfterOpenLeavesNothing) {
  Make(/*flat=*/true, /*one_bucket=*/true);
  for (const bool recomputed : {false, true}) {
    gradients_->Begin(true, true);
    EXPECT_THROW(Backward({{1, 3.0, gradients_.get(), recomputed, true}}),
                 std::runtime_error);
    gradients_->Finish();
    ready_.clear();
    gradients_->Begin(true, true);
    Backward({{1, 5.0, gradients_.get(), recomputed}});
    gradients_->Finish();
    EXPECT_EQ(ready_, std::vector<int>({0}));
    ExpectGradient(1, 5.0, "b");
    ExpectGradient(0, 0.0, "no gradient came");
  }
}

// BindGradients gets the buckets, and null when they are gone.
class ToldModel final : public Model {
 public:
  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int, uint64_t, int64_t, int64_t,
                            float*) const override {
    return absl::OkStatus();
  }
  void Bind(std::vector<at::Tensor>) override {}
  void BindGradients(GradientSink* sink) override { sink_ = sink; }
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::OkStatus();
  }
  GradientSink* sink() const { return sink_; }

 private:
  std::vector<ParameterSpec> specs_;
  std::vector<std::string> units_;
  GradientSink* sink_ = nullptr;
};

TEST(GradientSinkLifeTest, TheModelHasItAsLongAsItLives) {
  ToldModel model;
  GradientBuckets::Options options;
  options.model = &model;
  auto gradients = std::make_unique<GradientBuckets>(
      model.parameters(), FlatLayout(), std::vector<Bucket>(),
      std::vector<at::Tensor>(), std::move(options));
  EXPECT_EQ(model.sink(), gradients.get());
  gradients.reset();
  EXPECT_EQ(model.sink(), nullptr);
}

}  // namespace
}  // namespace capstan
