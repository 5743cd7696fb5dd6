// SPDX-License-Identifier: Apache-2.0
//
// ddp's gradients against c10d::Reducer's, the heart of PyTorch's
// DistributedDataParallel, on a model with tied, frozen and unused parameters.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "base/status.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/strategy.h"
#include "strategies/ddp/ddp.pb.h"
#include "tests/conformance/ranks.h"
#include "tests/conformance/toy_model.h"
#include "trainer/session/strategy_runner.h"

namespace capstan {
namespace {

using conformance::RankReport;
using conformance::ToyBatch;
using conformance::ToyModel;

constexpr uint64_t kSeed = 5;

c10::intrusive_ptr<c10d::ProcessGroup> GlooGroup(const std::string& path,
                                                 int rank, int world) {
  const auto store = c10::make_intrusive<c10d::FileStore>(path, world);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world);
  const auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(
      c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto gloo =
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world, options);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    gloo);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

// Gradients summed over the ranks, one a parameter, by the Reducer.
std::vector<at::Tensor> ReducerGradients(const std::string& path, int rank,
                                         int world, const ToyBatch& batch) {
  ToyModel model;
  std::vector<at::Tensor> parameters, trainable;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const ParameterSpec& spec = model.parameters()[i];
    at::Tensor value = at::empty(spec.shape, at::kFloat);
    EXPECT_TRUE(model
                    .InitialValue(static_cast<int>(i), kSeed, 0, spec.numel(),
                                  value.mutable_data_ptr<float>())
                    .ok());
    value.set_requires_grad(spec.trainable);
    parameters.push_back(value);
    if (spec.trainable) trainable.push_back(value);
  }
  model.Bind(parameters);
  std::vector<std::vector<size_t>> buckets(2);
  for (size_t i = 0; i < trainable.size(); ++i) {
    buckets[i < trainable.size() / 2 ? 1 : 0].push_back(i);
  }
  c10d::Reducer reducer(trainable, buckets, GlooGroup(path, rank, world),
                        std::vector<bool>(trainable.size(), false), 1 << 20,
                        /*find_unused_parameters=*/true,
                        /*gradient_as_bucket_view=*/false, {}, 1 << 20,
                        /*skip_all_reduce_unused_params=*/false,
                        /*use_python_reducer=*/false, {});
  PlainRunner runner;
  const at::Tensor loss = model.LossSum(batch, runner);
  reducer.prepare_for_backward({loss});
  torch::autograd::backward({loss}, {});
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    // The Reducer makes means.
    gradients.push_back(parameter.grad().defined() ? parameter.grad() * world
                                                   : at::zeros_like(parameter));
  }
  return gradients;
}

absl::Status Compare(const std::string& path, ProcessGroup* group,
                     RankReport* report) {
  const int64_t share = conformance::kToyGlobalBatch / group->size();
  const ToyBatch batch = conformance::ToySamples(group->rank() * share, share);
  const std::vector<at::Tensor> want =
      ReducerGradients(path, group->rank(), group->size(), batch);

  ToyModel model;
  ddp::Config config;
  config.set_bucket_cap_mib(0.0005);
  config.set_first_bucket_mib(0.0005);
  CAPSTAN_ASSIGN_OR_RETURN(const auto strategy, MakePlugin<Strategy>(config));
  StrategyContext context;
  context.model = &model;
  context.group = group;
  context.seed = kSeed;
  CAPSTAN_RETURN_IF_ERROR(strategy->Setup(context));
  StrategyRunner runner(strategy.get());
  strategy->BeginMicroStep(0, 1);
  torch::autograd::backward({model.LossSum(batch, runner)}, {});
  strategy->FinishBackward();
  const OptimizerShard& shard = strategy->OptimizerShards()[0];
  for (const ParameterRange& range : shard.ranges) {
    const at::Tensor got = shard.gradient.narrow(0, range.offset, range.length);
    const at::Tensor expected = want[range.parameter].reshape({-1});
    report->Add("difference", {(got - expected).abs().max().item<double>(),
                               expected.abs().max().item<double>()});
  }
  return absl::OkStatus();
}

class ReducerOracleTest : public ::testing::TestWithParam<int> {};

TEST_P(ReducerOracleTest, DdpSumsTheSameGradients) {
  const std::string path = conformance::NewConformanceFolder() + "/store";
  const conformance::WorldResult result = conformance::RunRanks(
      GetParam(), 30.0, [&](ProcessGroup* group, RankReport* report) {
        return Compare(path, group, report);
      });
  EXPECT_EQ(result.failure, "");
  ASSERT_EQ(result.ranks.size(), GetParam());
  for (const conformance::RankResult& rank : result.ranks) {
    EXPECT_EQ(rank.error, "");
    const auto found = rank.values.find("difference");
    ASSERT_NE(found, rank.values.end());
    double largest = 0.0;
    for (const std::vector<double>& pair : found->second) {
      // Division by the ranks and the order of sums: a few last bits.
      EXPECT_LE(pair[0], 1e-6 * (1.0 + pair[1]));
      largest = std::max(largest, pair[1]);
    }
    EXPECT_GT(largest, 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, ReducerOracleTest, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace capstan
