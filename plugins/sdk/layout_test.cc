// SPDX-License-Identifier: Apache-2.0
//
// The ABI that older plugins rely on (COMPATIBILITY.md): the vtable slots of
// each interface, and the sizes of structs that can't grow. A change here
// breaks them; additions go to the end of a list.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/gradient_sink.h"
#include "base/wide_gradient_sink.h"
#include "plugins/sdk/collector.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/packed_parameters.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {
namespace {

// A virtual function's index in its vtable (Itanium C++ ABI, section 2.3).
template <typename Function>
int Slot(Function function) {
  struct {
    intptr_t offset;
    intptr_t adjustment;
  } raw;
  static_assert(sizeof(raw) == sizeof(function));
  std::memcpy(&raw, &function, sizeof(raw));
#if defined(__aarch64__) || defined(__arm__)
  return static_cast<int>(raw.offset / sizeof(void*));
#else
  return static_cast<int>((raw.offset - 1) / sizeof(void*));
#endif
}

// Slots start after the two destructors.
template <typename... Functions>
void ExpectSlots(Functions... functions) {
  int next = 2;
  for (const int slot : {Slot(functions)...}) EXPECT_EQ(slot, next++);
}

TEST(InterfaceLayoutTest, WhatPluginsImplement) {
  ExpectSlots(&Strategy::Check, &Strategy::Plan, &Strategy::Setup,
              &Strategy::OptimizerShards, &Strategy::BeginMicroStep,
              &Strategy::wants_unit_callbacks, &Strategy::PreForward,
              &Strategy::PostForward, &Strategy::PreBackward,
              &Strategy::collective_forward, &Strategy::FinishForward,
              &Strategy::FinishBackward, &Strategy::GradientSquaredSum,
              &Strategy::PublishShard, &Strategy::PublishParameters,
              &Strategy::OwnedSlices, &Strategy::ForEachFullParameter,
              /* minor 2: */ &Strategy::BeginStep, &Strategy::state_names,
              &Strategy::ShardState,
              /* minor 3: */ &Strategy::SumsEachMicroStep);
  ExpectSlots(&Optimizer::learning_rate, &Optimizer::state_names,
              &Optimizer::Update, /* minor 2: */ &Optimizer::Check,
              &Optimizer::Setup, &Optimizer::NeedsWhole,
              &Optimizer::state_specs, /* minor 3: */ &Optimizer::StateNumel,
              &Optimizer::UpdateBytes);
  ExpectSlots(&Precision::policy, /* minor 1: */ &Precision::depends_on_device,
              &Precision::PolicyOn, &Precision::instead);
  ExpectSlots(&Objective::Check, &Objective::CountTargets,
              &Objective::step_totals, &Objective::StepTotals,
              &Objective::metrics, &Objective::Compute, &Objective::Measure,
              &Objective::Summarize, &Objective::Sample,
              /* minor 1: */ &Objective::unit, &Objective::DerivedFromLoss);
  ExpectSlots(&DatasetReader::size, &DatasetReader::shuffle,
              &DatasetReader::Read, &DatasetReader::Validation,
              &DatasetReader::max_sequence_length,
              &DatasetReader::sample_length, &DatasetReader::notes,
              &DatasetReader::tokenizer, &DatasetReader::PromptIds);
  ExpectSlots(&Model::parameters, &Model::units, &Model::InitialValue,
              &Model::Bind, &Model::BindGradients, &Model::SaveConfig,
              &Model::PlanUnits, &Model::AddLora, &Model::token_model);
  ExpectSlots(&TokenModel::vocab_size, &TokenModel::max_positions,
              &TokenModel::Logits, &TokenModel::CrossEntropySum,
              &TokenModel::causal, &TokenModel::NewCache,
              &TokenModel::eos_token, &TokenModel::mask_token,
              &TokenModel::sampling_objective);
  ExpectSlots(&PackedParameters::PackedBytes, &PackedParameters::PackedValue,
              &PackedParameters::Unpack);
  ExpectSlots(&KvCache::length);
  ExpectSlots(&Collector::output, &Collector::Collect);
  ExpectSlots(&GradientSink::Open);
  ExpectSlots(&WideGradientSink::OpenWide);
}

TEST(InterfaceLayoutTest, WhatTheCoreImplements) {
  ExpectSlots(&ProcessGroup::rank, &ProcessGroup::size, &ProcessGroup::device,
              &ProcessGroup::backend, &ProcessGroup::AllReduce,
              &ProcessGroup::ReduceScatter, &ProcessGroup::AllGather,
              &ProcessGroup::Broadcast, &ProcessGroup::AllReduceHost,
              &ProcessGroup::Split, &ProcessGroup::stats);
  ExpectSlots(&Work::Wait);
  ExpectSlots(&UnitRunner::Run);
  ExpectSlots(&Tokenizer::vocab_size, &Tokenizer::Encode,
              &Tokenizer::EncodeWithPlaces, &Tokenizer::AddEnds,
              &Tokenizer::Decode, &Tokenizer::IdOf, &Tokenizer::IsSpecial,
              &Tokenizer::special_ids, &Tokenizer::chat_template,
              &Tokenizer::Save);
}

// Plugins return these by value, keep them in arrays read by others, or pass
// them to each other.
TEST(InterfaceLayoutTest, StructsThatCannotGrow) {
  EXPECT_EQ(sizeof(ParameterSpec), 96);
  EXPECT_EQ(sizeof(UnitMemory), 48);
  EXPECT_EQ(sizeof(TokenInput), 32);
  EXPECT_EQ(sizeof(TokenTargets), 16);
  EXPECT_EQ(sizeof(StrategyPlan), 160);
  EXPECT_EQ(sizeof(OwnedSlice), 24);
  EXPECT_EQ(sizeof(OptimizerShard), 48);
  EXPECT_EQ(sizeof(ParameterRange), 32);
  EXPECT_EQ(sizeof(OptimizerStateSpec), 56);
  EXPECT_EQ(sizeof(PrecisionPolicy), 56);
  EXPECT_EQ(sizeof(LossScaling), 40);
  EXPECT_EQ(sizeof(LossSum), 48);  // 32 in minor 0: older_plugins.cc
  EXPECT_EQ(sizeof(MetricTags), 64);
  EXPECT_EQ(sizeof(Measurement), 72);
  EXPECT_EQ(sizeof(MeasuredCurve), 120);
  EXPECT_EQ(sizeof(MeasuredArray), 80);
  EXPECT_EQ(sizeof(Encoding), 72);
  EXPECT_EQ(sizeof(TokenTotals), 16);
  EXPECT_EQ(sizeof(CommunicationStats), 24);
  EXPECT_EQ(sizeof(GradientSink::Place), 16);
}

// Two units with a bit of everything.
class RoleModel : public IdleModel {
 public:
  RoleModel()
      : IdleModel({{"embed_tokens.weight", {5, 3}, 0, true, {}, false},
                   {"positions", {1, 5, 3}, 0, true, {}, false},
                   {"body.weight", {3, 3}, 1},
                   {"body.bias", {3}, 1},
                   {"body.kernel", {3, 3, 3}, 1},
                   {"final_norm.weight", {3}, 2},
                   {"lm_head.weight", {5, 3}, 2}},
                  {"embed", "body", "head"}) {}
};

TEST(ParameterRoleTest, FollowsFromUnitsShapesAndNames) {
  const RoleModel model;
  std::vector<ParameterRole> roles;
  for (int i = 0; i < 7; ++i) roles.push_back(RoleOf(model, i));
  EXPECT_EQ(roles, std::vector<ParameterRole>(
                       {ParameterRole::kEmbedding, ParameterRole::kEmbedding,
                        ParameterRole::kMatrix, ParameterRole::kOther,
                        ParameterRole::kOther, ParameterRole::kNorm,
                        ParameterRole::kHead}));
}

class OwnRoles final : public RoleModel, public ParameterRoles {
 public:
  ParameterRole role(int) const override { return ParameterRole::kHead; }
};

TEST(ParameterRoleTest, AModelMayKnowBetter) {
  EXPECT_EQ(RoleOf(OwnRoles(), 2), ParameterRole::kHead);
}

}  // namespace
}  // namespace capstan
