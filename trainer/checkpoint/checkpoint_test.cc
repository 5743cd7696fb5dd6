// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/checkpoint.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "absl/strings/string_view.h"
#include "plugins/sdk/fingerprint.h"
#include "trainer/checkpoint/checkpoint_testing.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kFlat = FakeRun::kFlat;

// Loads as a run of bounds.size() - 1 ranks; checks every element.
void ExpectLoads(const std::string& folder, const std::vector<int64_t>& bounds,
                 float shift = 0.0f) {
  const absl::Status status =
      FirstError(OnRanks(bounds.size() - 1, [&](ProcessGroup& group) {
        FakeRun run(group.rank(), bounds);
        const auto state = LoadCheckpoint(folder, run.Parts(group));
        EXPECT_TRUE(run.HasValues(shift)) << "rank " << group.rank();
        return state.status();
      }));
  EXPECT_TRUE(status.ok()) << status;
}

TEST(CheckpointTest, OneRankRoundTrip) {
  const std::string out = NewFolder() + "/deep/run";
  EXPECT_EQ(NewestCheckpoint(out), "");
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out, 7)).ok());
  const std::string folder = NewestCheckpoint(out);
  EXPECT_EQ(folder, out + "/checkpoints/step-00000007");
  EXPECT_THAT(Names(folder),
              ElementsAre("manifest.json", "state-00000-of-00001.safetensors"));
  ExpectLoads(folder, {0, kFlat});
  EXPECT_TRUE(IsCheckpoint(folder));
  EXPECT_FALSE(IsCheckpoint(out));
  EXPECT_EQ(*CheckpointConfig(folder), "name: \"test\"\n");
}

TEST(CheckpointTest, TrainStateIsExact) {
  const std::string out = NewFolder();
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out, 123)).ok());
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kFlat});
  const auto got = LoadCheckpoint(NewestCheckpoint(out), run.Parts(group));
  ASSERT_TRUE(got.ok()) << got.status();
  const TrainState want = StateAt(123);
  EXPECT_EQ(got->step, want.step);
  EXPECT_EQ(got->optimizer_steps, want.optimizer_steps);
  EXPECT_EQ(got->samples, want.samples);
  EXPECT_EQ(got->tokens, want.tokens);
  EXPECT_EQ(got->trained_tokens, want.trained_tokens);
  EXPECT_EQ(got->padding, want.padding);
  EXPECT_EQ(got->seed, want.seed);
  EXPECT_EQ(got->loss_scale, want.loss_scale);
  EXPECT_EQ(got->loss_scale_good_steps, want.loss_scale_good_steps);
  EXPECT_EQ(got->last_loss, want.last_loss);
  EXPECT_EQ(got->first_loss, want.first_loss);
  EXPECT_EQ(got->data_group, want.data_group);
  EXPECT_EQ(got->global_batch_size, want.global_batch_size);
  EXPECT_EQ(CheckpointState(NewestCheckpoint(out))->global_batch_size,
            want.global_batch_size);
  EXPECT_EQ(got->frozen_crc32c, want.frozen_crc32c);
  EXPECT_EQ(got->initial_crc32c, want.initial_crc32c);
  EXPECT_EQ(got->eval_step, want.eval_step);
  EXPECT_EQ(got->best_eval_loss, want.best_eval_loss);
  EXPECT_EQ(got->best_step, want.best_step);
  EXPECT_EQ(got->best_metric, want.best_metric);
  EXPECT_EQ(got->evals_without_better, want.evals_without_better);
  EXPECT_EQ(got->recent_losses, want.recent_losses);
  EXPECT_EQ(got->spikes_in_a_row, want.spikes_in_a_row);
  EXPECT_EQ(got->back_to, want.back_to);
  EXPECT_EQ(got->times_back, want.times_back);
  EXPECT_EQ(got->bad_samples, want.bad_samples);
  EXPECT_EQ(got->bad_eval_samples, want.bad_eval_samples);
}

TEST(CheckpointTest, ANonFiniteLossIsKept) {
  const std::string out = NewFolder();
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kFlat});
  TrainState state = StateAt(1);
  state.last_loss = std::nan("");
  state.loss_scale = std::numeric_limits<double>::infinity();
  ASSERT_TRUE(SaveCheckpoint({out, state}, run.Parts(group)).ok());
  const auto got = LoadCheckpoint(NewestCheckpoint(out), run.Parts(group));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(std::isnan(got->last_loss));
  EXPECT_EQ(got->loss_scale, state.loss_scale);
}

TEST(CheckpointTest, AnyWorldSizeReadsAny) {
  // Uneven; one rank without anything; cuts within parameters and padding.
  const std::vector<std::vector<int64_t>> layouts = {
      {0, kFlat}, {0, 3, 3, kFlat}, {0, 13, 21, kFlat}, {0, 17, kFlat}};
  for (const auto& saved : layouts) {
    const std::string out = NewFolder();
    const absl::Status status = FirstError(SaveWith(saved, out, 1));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(Names(NewestCheckpoint(out)).size(), saved.size());
    for (const auto& loaded : layouts) {
      ExpectLoads(NewestCheckpoint(out), loaded);
    }
  }
}

// Each rank's objective has its own, all ranks' models have rank 0's.
TEST(CheckpointTest, StatesOfPlugins) {
  const std::string out = NewFolder();
  const auto saved = OnRanks(2, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), {0, 13, kFlat});
    run.SetValues();
    CheckpointParts parts = run.Parts(group);
    const std::string mine = std::to_string(group.rank());
    std::string none;
    parts.plugins = {StateOf(kObjectiveKind, "objective " + mine, &none),
                     StateOf(kModelKind, "model " + mine, &none)};
    return SaveCheckpoint({out, StateAt(1)}, parts);
  });
  ASSERT_TRUE(FirstError(saved).ok()) << FirstError(saved);
  const std::string folder = NewestCheckpoint(out);
  EXPECT_TRUE(VerifyCheckpoint(folder).ok());
  const auto loaded = OnRanks(3, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), {0, 9, 22, kFlat});
    CheckpointParts parts = run.Parts(group);
    std::string objective, model, other = "of a load before";
    parts.plugins = {StateOf(kObjectiveKind, "", &objective),
                     StateOf(kModelKind, "", &model),
                     StateOf(kModelKind, "", &other)};
    parts.plugins.back().plugin = "acme.y";
    const absl::Status status = LoadCheckpoint(folder, parts).status();
    EXPECT_EQ(objective, "objective " + std::to_string(group.rank() % 2));
    EXPECT_EQ(model, "model 0");
    EXPECT_EQ(other, "");
    EXPECT_TRUE(run.HasValues());
    objective = model = "";
    const absl::Status weights = LoadCheckpointWeights(folder, parts);
    EXPECT_EQ(objective, "");
    EXPECT_EQ(model, "model 0");
    return status.ok() ? weights : status;
  });
  EXPECT_TRUE(FirstError(loaded).ok()) << FirstError(loaded);
}

TEST(CheckpointTest, WithoutStatesOfPluginsNothingIsAdded) {
  std::vector<std::string> texts;
  for (const bool has_plugins : {false, true}) {
    const std::string out = NewFolder();
    const auto saved = OnRanks(1, [&](ProcessGroup& group) {
      FakeRun run(0, {0, kFlat});
      run.SetValues();
      CheckpointParts parts = run.Parts(group);
      std::string none;
      if (has_plugins) {
        parts.plugins = {StateOf(kObjectiveKind, "", &none),
                         StateOf(kModelKind, "", &none)};
      }
      return SaveCheckpoint({out, StateAt(1)}, parts);
    });
    ASSERT_TRUE(FirstError(saved).ok()) << FirstError(saved);
    std::string text;
    for (const std::string& name : Names(NewestCheckpoint(out))) {
      std::ifstream file(NewestCheckpoint(out) + "/" + name);
      text.append(std::istreambuf_iterator<char>(file), {});
    }
    texts.push_back(text);
  }
  EXPECT_TRUE(texts[0] == texts[1]);
}

TEST(CheckpointTest, OwnedSlicesOfAWholeCopyAreEnough) {
  // As under DDP: every rank holds all and writes a part.
  const std::string out = NewFolder();
  const auto statuses = OnRanks(3, [&](ProcessGroup& group) {
    FakeRun run(0, {0, kFlat});
    run.SetValues();
    const int64_t cuts[] = {0, 9, 24, kFlat};
    run.owned_ = {{0, cuts[group.rank()], cuts[group.rank() + 1]}};
    return SaveCheckpoint({out, StateAt(1)}, run.Parts(group));
  });
  ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  ExpectLoads(NewestCheckpoint(out), {0, kFlat});
}

// Three numbers per parameter, held by all ranks that hold part of it.
TEST(CheckpointTest, StateThatIsNotAsTheMasters) {
  const auto parts_of = [&](FakeRun& run, ProcessGroup& group) {
    CheckpointParts parts = run.Parts(group);
    parts.state_shapes[1].spec = {"count", at::kLong, 1, 3};
    return parts;
  };
  const std::string out = NewFolder();
  const auto saved = OnRanks(2, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), {0, 25, kFlat});  // a and a part of b; the rest
    run.SetValues();
    run.state_[0][1] = at::arange(group.rank() == 0 ? 6 : 3, at::kLong);
    if (group.rank() == 1) run.state_[0][1] += 3;
    return SaveCheckpoint({out, StateAt(1)}, parts_of(run, group));
  });
  ASSERT_TRUE(FirstError(saved).ok()) << FirstError(saved);
  const auto loaded = OnRanks(2, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), {0, 13, kFlat});  // a part of a; the rest and b
    run.state_[0][1] = at::zeros({group.rank() == 0 ? 3 : 6}, at::kLong);
    const auto state =
        LoadCheckpoint(NewestCheckpoint(out), parts_of(run, group));
    EXPECT_TRUE(run.state_[0][1].equal(
        at::arange(group.rank() == 0 ? 3 : 6, at::kLong)));
    return state.status();
  });
  EXPECT_TRUE(FirstError(loaded).ok()) << FirstError(loaded);

  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kFlat});
  CheckpointParts parts = parts_of(run, group);
  parts.state_shapes[1].spec = {"count", at::kFloat, 1, 3};
  EXPECT_THAT(
      std::string(
          LoadCheckpoint(NewestCheckpoint(out), parts).status().message()),
      testing::HasSubstr("exp_avg, count (Long) (3 a parameter); this run's "
                         "optimizer has exp_avg, count (Float) (3 a "
                         "parameter)"));
}

TEST(CheckpointTest, WeightsForGeneration) {
  const std::string out = NewFolder();
  ASSERT_TRUE(FirstError(SaveWith({0, 13, kFlat}, out, 1)).ok());
  const auto weights =
      CheckpointWeights(NewestCheckpoint(out), FakeRun::Specs());
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_EQ(weights->size(), 2);
  EXPECT_EQ((*weights)[0].sizes(), at::IntArrayRef({4, 5}));
  for (int p = 0; p < 2; ++p) {
    for (int64_t i = 0; i < (*weights)[p].numel(); ++i) {
      EXPECT_EQ((*weights)[p].data_ptr<float>()[i], ValueOf(0, p, i));
    }
  }
}

TEST(CheckpointTest, KeepsTheBestBesideTheNewest) {
  const std::string out = NewFolder();
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kFlat});
  for (int64_t step : {1, 2, 3, 4, 5}) {
    ASSERT_TRUE(SaveCheckpoint({out, StateAt(step), /*keep=*/2,
                                /*best_step=*/step < 2 ? 1 : 2},
                               run.Parts(group))
                    .ok());
  }
  for (int64_t step : {1, 2, 3, 4, 5}) {
    EXPECT_EQ(
        IsCheckpoint(absl::StrCat(out, "/checkpoints/step-0000000", step)),
        step == 2 || step >= 4)
        << step;
  }
}

TEST(CheckpointTest, WeightsAloneLeaveTheStateAlone) {
  const std::string out = NewFolder();
  ASSERT_TRUE(FirstError(SaveWith({0, 13, kFlat}, out, 1)).ok());
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kFlat});
  run.SetValues(/*shift=*/50.0f);
  const at::Tensor state = run.state_[0][0].clone();
  FakeRun saved(0, {0, kFlat});
  saved.SetValues();
  ASSERT_TRUE(
      LoadCheckpointWeights(NewestCheckpoint(out), run.Parts(group)).ok());
  EXPECT_TRUE(run.state_[0][0].equal(state));
  EXPECT_FALSE(run.state_[0][0].equal(saved.state_[0][0]));
  // Padding between parameters isn't saved.
  const ParameterRange& range = run.shards_[0].ranges[0];
  EXPECT_TRUE(run.shards_[0]
                  .master.narrow(0, range.offset, range.length)
                  .equal(saved.shards_[0].master.narrow(0, range.offset,
                                                        range.length)));
}

TEST(CheckpointTest, KeepsTheNewest) {
  const std::string out = NewFolder();
  for (int step : {2, 4, 6, 8}) {
    ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out, step, 2)).ok());
  }
  EXPECT_THAT(Names(out + "/checkpoints"),
              ElementsAre("step-00000006", "step-00000008"));
  // A run went back to an older step: its newest save is kept.
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out, 3, 2)).ok());
  EXPECT_THAT(Names(out + "/checkpoints"),
              ElementsAre("step-00000003", "step-00000008"));
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out, 9, 0)).ok());
  EXPECT_EQ(Names(out + "/checkpoints").size(), 3);
}

TEST(CheckpointTest, SavingAStepAgainReplacesIt) {
  const std::string out = NewFolder();
  ASSERT_TRUE(FirstError(SaveWith({0, 9, kFlat}, out, 5)).ok());
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out, 5, 0, 0.5f)).ok());
  EXPECT_THAT(Names(out + "/checkpoints"), ElementsAre("step-00000005"));
  ExpectLoads(NewestCheckpoint(out), {0, 17, kFlat}, 0.5f);
}

TEST(CheckpointTest, AnotherModelIsRefused) {
  const std::string out = NewFolder();
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out, 1)).ok());
  const auto error = [&](const std::vector<ParameterSpec>& specs) {
    ThreadMeeting meeting(1);
    ThreadGroup group(&meeting, 0);
    FakeRun run(0, {0, 13}, specs);
    const absl::Status status =
        LoadCheckpoint(NewestCheckpoint(out), run.Parts(group)).status();
    EXPECT_TRUE(run.tensor(0).equal(at::zeros({13}, at::kFloat)));
    EXPECT_EQ(CheckpointWeights(NewestCheckpoint(out), specs).status(), status);
    return std::string(status.message());
  };
  EXPECT_THAT(error({{"a.weight", {5, 4}, 0, true}, {"b", {7}, 0, true}}),
              HasSubstr("made by another model: its 'a.weight' has shape "
                        "[4, 5], this run's has [5, 4]; resume with "));
  EXPECT_THAT(error({{"a.weight", {4, 5}, 0, true}, {"c", {7}, 0, true}}),
              HasSubstr("it has no parameter 'c'"));
  EXPECT_THAT(error({{"a.weight", {4, 5}, 0, true}}),
              HasSubstr("this run's has no parameter 'b'"));
  EXPECT_THAT(error({{"a.weight", {4, 5}, 0, true}, {"b", {7}, 0, false}}),
              HasSubstr("its 'b' is trained, this run's is frozen"));
}

TEST(CheckpointTest, AnotherOptimizerIsRefused) {
  const std::string out = NewFolder();
  ASSERT_TRUE(FirstError(SaveWith({0, kFlat}, out, 1)).ok());
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kFlat});
  CheckpointParts parts = run.Parts(group);
  parts.state_shapes = {{{"momentum"}, {}}};
  run.state_[0].pop_back();
  EXPECT_THAT(
      std::string(
          LoadCheckpoint(NewestCheckpoint(out), parts).status().message()),
      HasSubstr("saved with optimizer state exp_avg, exp_avg_sq; this run's "
                "optimizer has momentum"));
}

TEST(CheckpointTest, AFrozenParameterNeedsNoShard) {
  std::vector<ParameterSpec> specs = FakeRun::Specs();
  specs[1].trainable = false;
  const std::string out = NewFolder();
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, 22}, specs);  // without b
  run.SetValues();
  ASSERT_TRUE(SaveCheckpoint({out, StateAt(1)}, run.Parts(group)).ok());
  const std::string folder = NewestCheckpoint(out);
  FakeRun again(0, {0, 22}, specs);
  ASSERT_TRUE(LoadCheckpoint(folder, again.Parts(group)).ok());
  EXPECT_TRUE(again.HasValues());
  // For generation it comes from the model, as determined by the run's seed.
  EXPECT_THAT(std::string(CheckpointWeights(folder, specs).status().message()),
              HasSubstr("'b' is frozen"));
  const auto weights = CheckpointWeights(
      folder, specs, [](int index, uint64_t seed, float* out) {
        EXPECT_EQ(seed, StateAt(1).seed);
        std::fill_n(out, 7, static_cast<float>(index));
        return absl::OkStatus();
      });
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)[0].data_ptr<float>()[19], ValueOf(0, 0, 19));
  EXPECT_EQ((*weights)[1].data_ptr<float>()[6], 1.0f);
  // A run that trains it can't resume from here.
  specs[1].trainable = true;
  FakeRun trained(0, {0, kFlat}, specs);
  EXPECT_THAT(
      std::string(
          LoadCheckpoint(folder, trained.Parts(group)).status().message()),
      HasSubstr("its 'b' is frozen, this run's is trained"));
}

// Peak memory of this process since the last call, in bytes.
int64_t PeakSinceLastCall() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kib = 0;
  while (status >> word && word != "VmHWM:") {
  }
  status >> kib;
  std::ofstream("/proc/self/clear_refs") << "5";  // proc(5): resets it
  return kib * 1024;
}

TEST(CheckpointTest, SavingAndLoadingTakeLittleMemory) {
  // They keep books on memory, in memory.
  if (absl::string_view(CAPSTAN_SANITIZER) != "none") GTEST_SKIP();
  constexpr int64_t kElements = 6 << 20;  // 24 MiB of each kind
  const std::string out = NewFolder();
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, kElements + 2}, {{"w", {kElements}, 0, true}});
  run.SetValues();
  FakeRun again(0, {0, kElements + 2}, {{"w", {kElements}, 0, true}});
  again.SetValues(1.0f);  // touches its memory
  again.shards_[0].working.fill_(1.0f);
  PeakSinceLastCall();
  const int64_t before = PeakSinceLastCall();
  ASSERT_TRUE(SaveCheckpoint({out, StateAt(1)}, run.Parts(group)).ok());
  EXPECT_LT(PeakSinceLastCall() - before, 8 << 20);
  ASSERT_TRUE(LoadCheckpoint(NewestCheckpoint(out), again.Parts(group)).ok());
  EXPECT_LT(PeakSinceLastCall() - before, 12 << 20);
  for (int kind = 0; kind < 3; ++kind) {
    EXPECT_TRUE(again.tensor(kind).equal(run.tensor(kind)));
  }
  // Would detect a copy of even one tensor.
  PeakSinceLastCall();
  const at::Tensor copy = run.tensor(0).clone();
  EXPECT_GT(PeakSinceLastCall() - before, 20 << 20);
}

}  // namespace
}  // namespace capstan
