// SPDX-License-Identifier: Apache-2.0
//
// Choices of experts in groups, and rows summed by them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "kernels/cuda/dispatch.h"
#include "testing/cuda/checks.h"

namespace capstan::kernels::cuda {
namespace {

// Of choices [rows, top_k] on the CPU.
ChoiceGroups Expected(const at::Tensor& expert, const at::Tensor& share,
                      int64_t experts, bool reversed, bool padded) {
  const auto numbers = expert.options();
  at::Tensor group = expert.reshape({-1});
  at::Tensor shares = share.reshape({-1});
  at::Tensor row =
      at::arange(group.numel(), numbers).div(expert.size(1), "floor");
  if (reversed) group = experts - 1 - group;
  const at::Tensor of_group = group;
  if (padded) {
    group = at::cat({group, at::arange(experts, numbers)});
    shares = at::cat({shares, at::zeros({experts}, share.options())});
    row = at::cat({row, at::zeros({experts}, numbers)});
  }
  const at::Tensor place = group.argsort(/*stable=*/true, 0, false);
  at::Tensor order = at::zeros({group.numel()}, numbers);
  order.index_copy_(0, place, at::arange(group.numel(), numbers));
  const auto counts = [&](const at::Tensor& of) {
    return of.unsqueeze(1).eq(at::arange(experts, numbers)).sum(0);
  };
  at::Tensor chosen = counts(of_group);
  if (reversed) chosen = chosen.flip({0});
  return {row.index_select(0, place), order.narrow(0, 0, of_group.numel()),
          shares.index_select(0, place), counts(group).cumsum(0).to(at::kInt),
          chosen.to(at::kFloat)};
}

}  // namespace

Outputs CheckExperts(const Subject& subject, at::ScalarType dtype, int64_t rows,
                     int64_t top_k, int64_t experts, int64_t n) {
  // Some experts are chosen by all rows, others by none.
  const at::Tensor score = Normal(1, {rows, experts}, at::kFloat) +
                           Normal(2, {experts}, at::kFloat) * 3.0;
  const at::Tensor expert = std::get<1>(at::topk(score, top_k, -1));
  const at::Tensor share = Normal(3, {rows, top_k}, at::kFloat);
  const at::Tensor expert_there = expert.to(subject.device);
  const at::Tensor share_there = share.to(subject.device);
  Outputs outputs;
  for (const bool reversed : {false, true}) {
    for (const bool padded : {false, true}) {
      const ChoiceGroups made = GroupChoices(
          subject.cuda, expert_there, share_there, experts, reversed, padded);
      const ChoiceGroups wanted =
          Expected(expert, share, experts, reversed, padded);
      for (const auto part :
           {&ChoiceGroups::row, &ChoiceGroups::order, &ChoiceGroups::share,
            &ChoiceGroups::ends, &ChoiceGroups::chosen}) {
        EXPECT_TRUE(SameBits(made.*part, wanted.*part))
            << "reversed " << reversed << ", padded " << padded;
        outputs.push_back(made.*part);
      }
      const at::Tensor x = Normal(4, {wanted.row.numel(), n}, dtype);
      const at::Tensor add = Normal(5, {rows, n}, dtype);
      const at::Tensor picked = x.index_select(0, wanted.order)
                                    .view({rows, top_k, n})
                                    .to(at::kDouble);
      const at::Tensor there = x.to(subject.device);
      const at::Tensor sum = SumChosen(subject.cuda, there, made.order, top_k,
                                       at::Tensor(), at::Tensor());
      ExpectClose(sum, picked.sum({1}), dtype, 4, "sum");
      const at::Tensor shared =
          SumChosen(subject.cuda, there, made.order, top_k, share_there,
                    add.to(subject.device));
      ExpectClose(shared,
                  (picked * share.unsqueeze(2).to(at::kDouble)).sum({1}) + add,
                  dtype, 4, "sum of shares");
      outputs.insert(outputs.end(), {sum, shared});
    }
  }
  return outputs;
}

}  // namespace capstan::kernels::cuda
