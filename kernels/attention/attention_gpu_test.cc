// SPDX-License-Identifier: Apache-2.0
//
// Attention and its gradients on this machine's first GPU, by each kernel that
// LibTorch may choose, against the formula in float64 on the CPU; so is how
// cuDNN's compares with flash (cudnn_check.h). Skipped without a GPU, as
// tests/gpu/run.sh reports.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/gpus.h"
#include "cluster/comm/create.h"
#include "cluster/launch/launcher.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/plain_attention_for_test.h"
#include "kernels/testing.h"
#include "plugins/sdk/process_group.h"

namespace capstan::kernels {
namespace {

struct Case {
  const char* name;
  AttentionShape shape;
  Lengths lengths;  // of documents; one in each row: not packed
};

std::vector<Case> Cases() {
  const Lengths whole = {{192}, {192}};
  const Lengths packed = {{65, 1, 119, 7}, {3, 186, 3}};
  std::vector<Case> cases;
  for (const auto& [name, lengths] :
       {std::make_pair("whole", whole), std::make_pair("packed", packed)}) {
    AttentionShape shape = {2, 4, 4, 64};
    cases.push_back({name, shape, lengths});
    shape.kv_heads = 2;  // grouped queries
    cases.push_back({name, shape, lengths});
    shape.head_dim = 128;
    cases.push_back({name, shape, lengths});
    shape.window = 33;
    cases.push_back({name, shape, lengths});
    shape.window = 0;
    shape.causal = false;
    cases.push_back({name, shape, lengths});
    shape = {2, 4, 2, 64};
    shape.softcap = 3.0;
    cases.push_back({name, shape, lengths});
  }
  return cases;
}

std::string Text(const Case& c) {
  const AttentionShape& s = c.shape;
  return absl::StrCat(c.name, ", ", s.heads, " heads of ", s.head_dim, " on ",
                      s.kv_heads, s.causal ? ", causal" : ", bidirectional",
                      s.window > 0 ? ", windowed" : "",
                      s.softcap > 0 ? ", capped" : "");
}

// Relative to the largest value: of one rounding of inputs, scores and results
// each, with some room.
double Bound(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return 4e-2;
    case at::kHalf:
      return 5e-3;
    default:
      return 2e-5;
  }
}

void Expect(const Case& c, at::ScalarType type, const at::Device& device) {
  const AttentionShape& shape = c.shape;
  const at::Tensor positions = Positions(c.lengths);
  const int64_t rows = positions.numel();
  const int64_t kv = shape.kv_heads * shape.head_dim;
  // What the GPU gets, in float64.
  Tensors inputs = {Wave({rows, shape.heads * shape.head_dim}),
                    Wave({rows, kv}), Wave({rows, kv})};
  for (at::Tensor& t : inputs) t = t.to(type).to(at::kDouble);
  const Tensors wanted = RunBoth(
      [&](const Tensors& in) { return PlainAttention(in, shape, positions); },
      inputs, at::kDouble);
  const bool packs = c.lengths[0].size() > 1;
  const Packing packing =
      packs ? c10::make_intrusive<PackedRows>(positions, positions.to(device))
            : nullptr;
  for (at::Tensor& t : inputs) t = t.to(device);
  const Tensors got = RunBoth(
      [&](const Tensors& in) {
        return Attention(in[0], in[1], in[2], shape, packing);
      },
      inputs, type);
  const char* const names[] = {"output", "dq", "dk", "dv"};
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(Difference(got[i].cpu().to(at::kDouble), wanted[i]), Bound(type))
        << names[i];
  }
}

TEST(AttentionGpu, EqualsTheFormula) {
  if (CountGpus() == 0) GTEST_SKIP() << "no GPU";
  // Loads LibTorch's CUDA part and initialises the GPU.
  const auto group = CreateProcessGroup(RankInfo(), CountGpus());
  ASSERT_TRUE(group.ok()) << group.status();
  const at::Device device = (*group)->device();
  for (const bool cudnn : {true, false}) {
    at::globalContext().setSDPUseCuDNN(cudnn);
    for (const bool flash : {true, false}) {
      at::globalContext().setSDPUseFlash(flash);
      for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
        for (const Case& c : Cases()) {
          SCOPED_TRACE(absl::StrCat(Text(c), ", ", c10::toString(type),
                                    cudnn ? ", cuDNN" : "",
                                    flash ? ", flash" : ""));
          Expect(c, type, device);
          EXPECT_EQ(at::globalContext().userEnabledCuDNNSDP(), cudnn)
              << "the comparison with flash has switched cuDNN's off";
        }
      }
    }
  }
}

}  // namespace
}  // namespace capstan::kernels
