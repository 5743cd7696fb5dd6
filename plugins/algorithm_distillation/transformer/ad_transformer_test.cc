// SPDX-License-Identifier: Apache-2.0
//
// Sizes, bookkeeping, and both implementations compared with each other;
// tests/golden compares the results with PyTorch.
#include "plugins/algorithm_distillation/transformer/ad_transformer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "base/status.h"
#include "plugins/algorithm_distillation/transformer/ad_transformer_testing.h"

namespace capstan::ad_transformer {
namespace {

int64_t Count(const Config& config) {
  int64_t total = 0;
  const auto model = Make(config);
  for (const ParameterSpec& spec : model->parameters()) total += spec.numel();
  return total;
}

double Difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// Row b of a batch, without its padding.
HistoryInput RowAlone(const HistoryInput& input, int64_t b) {
  HistoryInput row = input;
  const int64_t n = input.lengths[b].item<int64_t>();
  row.transitions = input.transitions.narrow(0, b, 1).narrow(1, 0, n);
  row.kinds = input.kinds.narrow(0, b, 1).narrow(1, 0, n);
  row.lengths = input.lengths.narrow(0, b, 1);
  if (input.sample_positions.defined()) {
    row.sample_positions = input.sample_positions.narrow(0, b, 1);
  }
  return row;
}

TEST(AdTransformerTest, TheOriginalHas1245064Parameters) {
  Config config;
  config.set_embedding(128);
  config.set_layers(6);
  config.set_heads(8);
  config.set_n_transit(328);
  config.set_compressed(true);
  EXPECT_EQ(Count(config), 1245064);
  config.set_compressed(false);
  // Without 3 token types, 2 markers and the second head.
  EXPECT_EQ(Count(config), 1245064 - 3 * 128 - 2 * 128 - 3 * 128 - 3);
}

TEST(AdTransformerTest, ParametersAreTheOriginalsInOrderOfUse) {
  const auto model = Make(SmallSizes());
  const auto& specs = model->parameters();
  EXPECT_EQ(model->units(),
            (std::vector<std::string>{"embed", "layers.0", "layers.1",
                                      "layers.2", "head"}));
  EXPECT_EQ(specs[0].name, "pos_embedding");
  EXPECT_EQ(specs[0].shape, (std::vector<int64_t>{1, 40, 32}));
  EXPECT_EQ(specs[kEndToken].name, "compress_end_token");
  EXPECT_EQ(specs[7].name,
            "transformer_encoder.layers.0.self_attn.in_proj_weight");
  EXPECT_EQ(specs[7].shape, (std::vector<int64_t>{96, 32}));
  EXPECT_EQ(specs[7].unit, 1);
  EXPECT_EQ(specs.back().name, "pred_token_type.bias");
  EXPECT_EQ(specs.back().unit, 4);
  for (const ParameterSpec& spec : Make(SmallSizes(false))->parameters()) {
    EXPECT_EQ(spec.name.find("token"), std::string::npos) << spec.name;
  }
}

TEST(AdTransformerTest, InitialValuesAreThoseOfPyTorchsModules) {
  Config config = SmallSizes();
  const auto model = Make(config);
  const auto& specs = model->parameters();
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::vector<float> value = Value(*model, static_cast<int>(i));
    double squares = 0.0, most = 0.0;
    for (float x : value) {
      squares += x * x;
      most = std::max<double>(most, std::abs(x));
    }
    const double deviation = std::sqrt(squares / value.size());
    const std::string& name = specs[i].name;
    const auto has = [&](const char* part) {
      return name.find(part) != std::string::npos;
    };
    if (has("in_proj_weight")) {
      EXPECT_LE(most, std::sqrt(6.0 / 128.0));
      EXPECT_NEAR(deviation, std::sqrt(2.0 / 128.0), 0.01) << name;
    } else if (has("in_proj_bias") || has("out_proj.bias") ||
               (has("norm") && has("bias"))) {
      EXPECT_EQ(most, 0.0) << name;
    } else if (has("norm")) {
      EXPECT_EQ(value, std::vector<float>(32, 1.0f)) << name;
    } else if (has("linear2.weight")) {
      EXPECT_LE(most, 1.0 / std::sqrt(48.0));
      EXPECT_NEAR(deviation, 1.0 / std::sqrt(3 * 48.0), 0.01) << name;
    } else if (has("pos_embedding")) {
      EXPECT_NEAR(deviation, 0.02, 0.002);
    } else if (has("query_state")) {
      EXPECT_NEAR(deviation, 1.0, 0.05);
    }
    std::vector<float> part(3);
    ASSERT_TRUE(model->InitialValue(i, 0, 1, 3, part.data()).ok());
    if (value.size() > 3) {
      EXPECT_EQ(part[2], value[3]);
    }
  }
  EXPECT_NE(Value(*model, 7, 1), Value(*model, 7, 2));
}

TEST(AdTransformerTest, BadSizesNameTheirField) {
  const auto expect = [](const std::string& field, auto edit) {
    Config config = SmallSizes();
    edit(config);
    const absl::Status status = AdTransformer::Create(config).status();
    EXPECT_EQ(FieldOf(status), field) << status;
  };
  expect("embedding", [](Config& c) { c.clear_embedding(); });
  expect("layers", [](Config& c) { c.set_layers(-1); });
  expect("heads", [](Config& c) { c.set_heads(5); });
  expect("heads", [](Config& c) { c.clear_heads(); });
  expect("n_transit", [](Config& c) { c.clear_n_transit(); });
  expect("feed_forward", [](Config& c) { c.set_feed_forward(-4); });
  expect("dropout", [](Config& c) { c.set_dropout(1.0); });
  expect("dropout", [](Config& c) { c.set_dropout(std::nan("")); });
  expect("grid", [](Config& c) { c.set_grid(1000); });
  expect("actions", [](Config& c) { c.set_actions(-2); });
  expect("pretrained", [](Config& c) { c.set_pretrained("somewhere"); });
}

TEST(AdTransformerTest, SaysWhatIsWrongWithAFolder) {
  const std::string folder = testing::TempDir() + "/ad_transformer_bad";
  ASSERT_EQ(std::system(("mkdir -p " + folder).c_str()), 0);
  const auto expect = [&](const std::string& json, const std::string& part) {
    std::ofstream(folder + "/config.json") << json;
    Config config;
    config.set_pretrained(folder);
    const absl::Status status = AdTransformer::Create(config).status();
    EXPECT_EQ(FieldOf(status), "pretrained");
    EXPECT_NE(status.message().find(part), absl::string_view::npos) << status;
  };
  expect("[", "not a JSON object");
  expect("{\"model_type\": \"llama\"}", "model_type");
  expect("{\"model_type\": \"ad_transformer\"}",
         "embedding must be an integer");
  const auto model = Make(SmallSizes());
  ASSERT_TRUE(model->SaveConfig(folder, at::kFloat).ok());
  std::ifstream in(folder + "/config.json");
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  expect(good, "model.safetensors");
}

class AdTransformerModes : public testing::TestWithParam<bool> {};

TEST_P(AdTransformerModes, FusedIsPlainWithDropoutAndGradients) {
  at::manual_seed(3);
  const auto fused = Make(SmallSizes(GetParam()));
  const auto plain = Make(SmallSizes(GetParam()));
  plain->UsePlainOperators();
  std::vector<at::Tensor> parameters = BindTo(*fused);
  plain->Bind(parameters);
  HistoryInput input = Histories({40, 40, 40}, 40, GetParam());
  input.sample_positions = at::arange(3).mul(77);
  input.seed = 5;
  PlainRunner runner;
  const at::Tensor a = fused->LastLogits(input, runner);
  EXPECT_EQ(a.sizes(), at::IntArrayRef({3, GetParam() ? 8 : 5}));
  const at::Tensor factors = at::randn(a.sizes());
  (a * factors).sum().backward();
  std::vector<at::Tensor> got;
  for (at::Tensor& p : parameters) {
    got.push_back(p.grad());
    p.mutable_grad().reset();
  }
  const at::Tensor b = plain->LastLogits(input, runner);
  EXPECT_LT(Difference(a, b), 1e-5);
  (b * factors).sum().backward();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(got[i].allclose(parameters[i].grad(), 1e-3, 2e-5))
        << fused->parameters()[i].name;
  }
  // Without the samples' keys nothing is dropped; other keys drop others.
  input.sample_positions = at::Tensor();
  EXPECT_GT(Difference(fused->LastLogits(input, runner), a), 1e-3);
  input.sample_positions = at::arange(3).mul(77);
  input.seed = 6;
  EXPECT_GT(Difference(fused->LastLogits(input, runner), a), 1e-3);
}

// workloads.md 5.4: the original reads a shorter row's padding.
TEST_P(AdTransformerModes, ARowAloneIsTheRowInTheBatch) {
  at::manual_seed(4);
  const at::AutoGradMode no_gradients(false);
  const auto fused = Make(SmallSizes(GetParam()));
  const auto plain = Make(SmallSizes(GetParam()));
  plain->UsePlainOperators();
  plain->Bind(BindTo(*fused));
  const std::vector<int64_t> lengths = {40, 1, 23, 9, 2};
  HistoryInput input = Histories(lengths, 40, GetParam());
  PlainRunner runner;
  for (const bool dropout : {false, true}) {
    if (dropout) input.sample_positions = at::arange(5).add(9);
    const at::Tensor batch = fused->LastLogits(input, runner);
    const at::Tensor padded = plain->LastLogits(input, runner);
    for (int64_t b = 0; b < 5; ++b) {
      const HistoryInput row = RowAlone(input, b);
      EXPECT_LT(Difference(fused->LastLogits(row, runner)[0], batch[b]), 1e-6);
      EXPECT_LT(Difference(plain->LastLogits(row, runner)[0], padded[b]), 1e-5);
      EXPECT_LT(Difference(batch[b], padded[b]), 1e-5);
    }
  }
}

TEST_P(AdTransformerModes, AHistoryTokenByTokenIsTheHistoryAtOnce) {
  at::manual_seed(5);
  const at::AutoGradMode no_gradients(false);
  const auto model = Make(SmallSizes(GetParam()));
  BindTo(*model);
  PlainRunner runner;
  const std::vector<int64_t> lengths = {40, 12, 25};
  const HistoryInput whole = Histories(lengths, 40, GetParam());
  const at::Tensor wanted = model->LastLogits(whole, runner);
  const auto cache = model->NewCache(3);
  // Rows end at different times.
  at::Tensor got = wanted.clone().fill_(NAN);
  for (int64_t t = 0; t < 40;) {
    const int64_t n = t % 3 + 1 <= 40 - t ? t % 3 + 1 : 40 - t;
    HistoryInput next;
    next.transitions = whole.transitions.narrow(1, t, n).contiguous();
    next.kinds = whole.kinds.narrow(1, t, n).contiguous();
    next.lengths = (whole.lengths - t).clamp(0, n);
    const at::Tensor logits = model->NextLogits(*cache, next, runner);
    for (int64_t b = 0; b < 3; ++b) {
      if (lengths[b] > t && lengths[b] <= t + n) got[b].copy_(logits[b]);
    }
    t += n;
  }
  EXPECT_LT(Difference(got, wanted), 1e-5);
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_EQ(cache->length(b), lengths[b] - 1) << "a query isn't kept";
  }
  // A cleared row starts again; the others are unaffected.
  cache->Clear(1);
  HistoryInput again = Histories({0, 6, 0}, 6, GetParam());
  const at::Tensor logits = model->NextLogits(*cache, again, runner);
  EXPECT_EQ(cache->length(0), 39);
  EXPECT_EQ(cache->length(1), 5);
  EXPECT_LT(
      Difference(logits[1], model->LastLogits(RowAlone(again, 1), runner)[0]),
      1e-5);
}

TEST_P(AdTransformerModes, SixteenBitsAreNear) {
  at::manual_seed(6);
  const at::AutoGradMode no_gradients(false);
  const auto model = Make(SmallSizes(GetParam()));
  const auto narrow = Make(SmallSizes(GetParam()));
  BindTo(*model);
  BindTo(*narrow, at::kBFloat16);
  HistoryInput input = Histories({30, 17}, 30, GetParam());
  PlainRunner runner;
  const at::Tensor a = model->LastLogits(input, runner);
  const at::Tensor b = narrow->LastLogits(input, runner);
  EXPECT_EQ(b.scalar_type(), at::kFloat);
  EXPECT_LT(Difference(a, b), 0.1);
}

class ForeignCache final : public HistoryCache {
 public:
  int64_t length(int64_t) const override { return 0; }
  void Clear(int64_t) override {}
};

TEST_P(AdTransformerModes, AForeignCacheIsRefused) {
  const at::AutoGradMode no_gradients(false);
  const auto model = Make(SmallSizes(GetParam()));
  BindTo(*model);
  PlainRunner runner;
  ForeignCache cache;
  EXPECT_THROW(model->NextLogits(cache, Histories({3}, 3, GetParam()), runner),
               c10::Error);
}

INSTANTIATE_TEST_SUITE_P(Modes, AdTransformerModes, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "compressed" : "plain";
                         });

}  // namespace
}  // namespace capstan::ad_transformer
