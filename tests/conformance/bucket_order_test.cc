// SPDX-License-Identifier: Apache-2.0
//
// Checks that buckets become complete in the order in which they are reduced,
// so that none waits for a later one.
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "plugins/model/llama/llama.h"
#include "strategies/common/flat_layout.h"

namespace capstan {
namespace {

class Arrival : public torch::autograd::PostAccumulateGradHook {
 public:
  Arrival(std::vector<int>* order, int parameter)
      : order_(order), parameter_(parameter) {}
  void operator()(const at::Tensor&) override { order_->push_back(parameter_); }

 private:
  std::vector<int>* const order_;
  const int parameter_;
};

std::unique_ptr<llama::Llama> SmallLlama(bool tied) {
  llama::Config config;
  config.set_hidden_size(12);
  config.set_intermediate_size(20);
  config.set_num_hidden_layers(4);
  config.set_num_attention_heads(3);
  config.set_num_key_value_heads(1);
  config.set_vocab_size(31);
  config.set_max_position_embeddings(16);
  config.set_tie_word_embeddings(tied);
  auto model = llama::Llama::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// The parameters in the order in which the first backward finishes their
// gradients.
std::vector<int> OrderOfArrival(llama::Llama* model) {
  std::vector<at::Tensor> parameters;
  std::vector<int> order;
  for (const ParameterSpec& spec : model->parameters()) {
    at::Tensor parameter = at::randn(spec.shape);
    parameter.set_requires_grad(true);
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameter,
        std::make_unique<Arrival>(&order, static_cast<int>(parameters.size())));
    parameters.push_back(std::move(parameter));
  }
  model->Bind(parameters);
  PlainRunner runner;
  TokenInput input;
  input.tokens = at::randint(31, {2, 8}, at::kLong);
  const at::Tensor targets = at::randint(31, {2, 8}, at::kLong);
  torch::autograd::backward({model->CrossEntropySum(input, {targets}, runner)},
                            {});
  return order;
}

class BucketOrderTest : public ::testing::TestWithParam<bool> {};

TEST_P(BucketOrderTest, IsThatOfTheFirstStepsGradients) {
  const auto model = SmallLlama(/*tied=*/GetParam());
  const std::vector<ParameterSpec>& specs = model->parameters();
  const std::vector<int> order = OrderOfArrival(model.get());
  ASSERT_EQ(order.size(), specs.size()) << "one gradient each";
  // A layer is one node of the graph: its gradients arrive together, in no
  // particular order. So arrival is compared by unit.
  std::vector<int> arrival(specs.size());
  std::string list;
  int moment = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && specs[order[i]].unit != specs[order[i - 1]].unit) ++moment;
    arrival[order[i]] = moment;
    list += specs[order[i]].name + "\n";
  }
  EXPECT_EQ(moment + 1, model->units().size()) << list;
  const FlatLayout layout = LayOut(specs, BackwardOrder(specs, true));
  // Buckets of a few parameters, of about a layer, of several layers.
  for (const int64_t cap : {300, 600, 1300, 3000}) {
    const std::vector<Bucket> buckets = CutBuckets(layout, cap / 4, cap);
    EXPECT_GT(buckets.size(), 1);
    int before = -1;
    for (size_t b = 0; b < buckets.size(); ++b) {
      int complete = 0;
      for (int parameter : buckets[b].parameters) {
        complete = std::max(complete, arrival[parameter]);
      }
      EXPECT_GE(complete, before)
          << "bucket " << b << " of at most " << cap << " elements:\n"
          << list;
      before = complete;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BucketOrderTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Tied" : "Untied";
                         });

}  // namespace
}  // namespace capstan
