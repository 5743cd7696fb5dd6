// SPDX-License-Identifier: Apache-2.0
//
// Compares the plans of a language model's two ends with their allocations.
#include <ATen/TensorOperators.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "kernels/context/wide_gradient_sink.h"
#include "kernels/loss/token_loss.h"
#include "kernels/memory_testing.h"

namespace capstan::kernels {
namespace {

class OnePlace final : public GradientSink, public WideGradientSink {
 public:
  explicit OnePlace(const at::Tensor& of)
      : wide_(of.scalar_type() != at::kFloat), place_(at::zeros(of.sizes())) {}
  Place Open(int) override { return wide_ ? Place() : PlaceOf(); }
  Place OpenWide(int) override { return wide_ ? PlaceOf() : Place(); }

 private:
  Place PlaceOf() const { return {place_.detach(), /*add=*/false}; }
  const bool wide_;
  const at::Tensor place_;
};

struct Case {
  const char* name;
  int64_t rows, hidden, vocab;
  at::ScalarType dtype;
  bool sink = false;
  bool trained = true;
  double softcap = 0.0;
  double smoothing = 0.0;
};

constexpr Case kCases[] = {
    {"small", 256, 64, 1000, at::kFloat},
    {"small_to_a_sink", 256, 64, 1000, at::kFloat, true},
    {"two_pieces", 600, 64, 40000, at::kFloat},
    {"two_pieces_to_a_sink", 600, 64, 40000, at::kFloat, true},
    {"frozen", 256, 64, 5000, at::kFloat, false, false},
    {"half", 256, 64, 5000, at::kBFloat16},
    {"half_to_a_sink", 256, 64, 5000, at::kBFloat16, true},
    {"half_in_two_pieces_to_a_sink", 1000, 64, 40000, at::kBFloat16, true},
    {"half_in_two_pieces", 1000, 64, 40000, at::kBFloat16},
    {"capped", 256, 64, 5000, at::kFloat, false, true, 30.0},
    {"capped_in_pieces", 600, 64, 40000, at::kFloat, true, true, 30.0},
    {"half_capped_in_pieces", 1000, 64, 40000, at::kBFloat16, false, true,
     30.0},
    {"smoothed_in_pieces", 600, 64, 40000, at::kFloat, true, true, 0.0, 0.1},
    {"half_smoothed_in_pieces", 1000, 64, 40000, at::kBFloat16, true, true, 0.0,
     0.1},
    {"half_frozen", 256, 64, 5000, at::kBFloat16, false, false},
};

class LossMemoryTest : public ::testing::TestWithParam<Case> {
 protected:
  LossMemoryTest()
      : shape_{
            GetParam().rows,  GetParam().hidden,  GetParam().vocab,
            GetParam().dtype, GetParam().trained,
            /*tied=*/false,   GetParam().sink,    GetParam().softcap != 0.0} {
    const Case& c = GetParam();
    weight_ = (at::randn({c.vocab, c.hidden}) * 0.05).to(c.dtype);
    if (c.trained) weight_ = TrainedWeight(weight_);
    place_ = std::make_unique<OnePlace>(weight_);
    if (c.sink) to_ = {place_.get(), 0};
    tokens_ = at::randint(c.vocab, {c.rows}, at::kLong);
  }
  double bound() const { return GetParam().dtype == at::kFloat ? 0.01 : 0.05; }

  const TokenLossShape shape_;
  at::Tensor weight_, tokens_;
  std::unique_ptr<OnePlace> place_;
  WeightPlace to_;
};

TEST_P(LossMemoryTest, Head) {
  const Case& c = GetParam();
  const at::Tensor hidden =
      at::randn({c.rows, c.hidden}).to(c.dtype).set_requires_grad(true);
  MemoryLedger forward;
  PlanHead(shape_, &forward);
  MemoryLedger backward(forward.live());
  PlanHeadBackward(shape_, &backward);
  ExpectNear(MemoryOf(forward, backward), Measure([&] {
               return HeadCrossEntropySum(hidden, weight_, tokens_, nullptr,
                                          kLogitsBytes, to_, {}, c.softcap,
                                          c.smoothing);
             }),
             bound());
}

TEST_P(LossMemoryTest, Embedding) {
  const Case& c = GetParam();
  if (!c.trained) return;  // no backward reaches it
  MemoryLedger backward;
  PlanEmbeddingBackward(shape_, &backward);
  const OperatorMemory measured =
      Measure([&] { return Embedding(weight_, tokens_, nullptr, to_); });
  const int64_t output = c.rows * c.hidden * ElementBytes(c.dtype);
  EXPECT_NEAR(measured.kept, output, 0.01 * static_cast<double>(output));
  EXPECT_NEAR(measured.backward, backward.peak(),
              bound() * static_cast<double>(output + measured.backward));
}

INSTANTIATE_TEST_SUITE_P(Cases, LossMemoryTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(LogitsPiecesTest, CoverAllRows) {
  for (const int64_t rows : {0, 1, 7, 600, 1001}) {
    const LogitsPieces pieces = PiecesOf(rows, 100, 5000);
    EXPECT_LE(pieces.rows, 50);
    EXPECT_EQ((pieces.count - 1) * pieces.rows + pieces.last, rows);
    EXPECT_LE(pieces.last, pieces.rows);
  }
}

}  // namespace
}  // namespace capstan::kernels
