// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "desk/who/measure_rows.h"
#include "desk/who/row_text.h"
#include "desk/who/step_of_run.h"
#include "desk/who/token_losses.h"
#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/objective.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A sample is its own index, and as long as its last digit says.
class Indices final : public DatasetReader {
 public:
  int64_t size() const override { return 50; }
  bool shuffle() const override { return true; }
  int64_t sample_length(int64_t index) const override { return index % 10; }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override {
    at::Tensor ids =
        at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
    for (size_t i = 0; i < indices.size(); ++i) {
      ids.mutable_data_ptr<int64_t>()[i] = indices[i];
    }
    (*batch)["ids"] = ids;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
};

// (sample, position) of each row of a rank's micro-batches.
using Rows = std::vector<std::pair<int64_t, int64_t>>;

// What a rank's loader gives for the step after `steps` others.
Rows FromLoader(const DataOrder& order, const BatchPlan& plan, int ranks,
                int rank, int64_t steps, const DatasetReader& reader) {
  DataLoaderOptions options;
  options.order = order;
  options.shares = {plan.micro_batch_size, plan.global_batch_size, ranks};
  options.rank = rank;
  const auto loader = DataLoader::Create(options, reader);
  Rows rows;
  for (int64_t i = 0; i < (steps + 1) * plan.accumulation; ++i) {
    const absl::StatusOr<Batch> batch = loader->Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    if (i < steps * plan.accumulation) continue;
    if (options.shares.FirstSample(rank, i % plan.accumulation) < 0) continue;
    for (int64_t row = 0; row < plan.micro_batch_size; ++row) {
      rows.emplace_back(batch->at("ids")[row].item<int64_t>(),
                        batch->at(kSamplePosition)[row].item<int64_t>());
    }
  }
  return rows;
}

// Over the end of an epoch, sorted in groups or not; of 4 ranks two are idle in
// the last micro-step.
TEST(RowsOfStepTest, AreWhatTheLoadersGiveTheRanks) {
  const Indices reader;
  for (const bool grouped : {false, true}) {
    for (const int ranks : {3, 4}) {
      BatchPlan plan;
      plan.global_batch_size = 12;
      plan.micro_batch_size = 2;
      plan.accumulation = 2;
      const DataOrder order = OrderOf(reader, /*seed=*/7, grouped, 12);
      for (const int64_t steps : {0, 4}) {
        const std::vector<StepRow> rows =
            RowsOfStep(order, plan, Mesh{ranks, 1}, steps * 12);
        EXPECT_EQ(rows.size(), 12);
        std::map<int, Rows> by_rank;
        for (const StepRow& row : rows) {
          by_rank[row.rank].emplace_back(row.sample, row.position);
          EXPECT_EQ(row.epoch, row.position / 50);
        }
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(by_rank[rank],
                    FromLoader(order, plan, ranks, rank, steps, reader))
              << grouped << ranks << " " << steps;
        }
      }
    }
  }
}

TEST(RowsOfStepTest, OfRanksThatShareRowsTheFirstIsNamed) {
  Mesh mesh;
  mesh.data = 2;
  mesh.sequence = 2;
  BatchPlan plan;
  plan.global_batch_size = 2;
  DataOrder order;
  order.size = 10;
  const std::vector<StepRow> rows = RowsOfStep(order, plan, mesh, 4);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0].rank, 0);
  EXPECT_EQ(rows[1].rank, 2);
  EXPECT_EQ(rows[1].sample, 5);
}

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/who-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

// A run that was resumed on other ranks: each process has said so.
TEST(StepRecordTest, RanksAndMetricsOfAResumedRun) {
  const std::string folder = NewFolder();
  std::filesystem::create_directory(folder + "/ranks");
  std::ofstream(folder + "/config.pbtxt") << "name: \"a\"\n";
  std::ofstream(folder + "/ranks/rank-00000.jsonl")
      << "{\"time\": 1.5, \"rank\": 0, \"world_size\": 4, \"first_step\": 0}\n"
      << "{\"time\": 2.5, \"step\": 3, \"steps\": 3}\n"
      << "{\"time\": 9.5, \"rank\": 0, \"world_size\": 2, \"first_step\": 3}\n";
  std::ofstream(folder + "/metrics.jsonl")
      << "{\"step\": 3, \"loss\": 2.5, \"grad_norm\": 1.0}\n"
      << "{\"step\": 4, \"loss\": 2.25, \"grad_norm\": 1.0}\n"
      << "{\"step\": 4, \"eval_loss\": 9.0}\n"
      // After a restart from an older checkpoint.
      << "{\"step\": 4, \"loss\": 2.125, \"grad_norm\": 0.5}\n"
      << "{\"step\": 5, \"loss\":";
  const auto third = ReadStepRecord(folder, 3);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->world_size, 4);
  EXPECT_EQ(third->loss, 2.5);
  EXPECT_EQ(third->checkpoint, "");
  const auto fourth = ReadStepRecord(folder, 4);
  EXPECT_EQ(fourth->world_size, 2);
  EXPECT_EQ(fourth->loss, 2.125);
  EXPECT_EQ(fourth->grad_norm, 0.5);
  EXPECT_FALSE(ReadStepRecord(folder, 5)->done);
  std::ofstream(folder + "/metrics.jsonl", std::ios::app)
      << "\n{\"step\": 5, \"loss\": null}\n";
  EXPECT_TRUE(ReadStepRecord(folder, 5)->done);
  EXPECT_FALSE(ReadStepRecord(folder, 5)->loss.has_value());
  // The run was longer once than its config says now; but not that long.
  std::ofstream(folder + "/config.pbtxt") << "train {\n  max_steps: 3\n}\n";
  EXPECT_EQ(ReadStepRecord(folder, 4)->loss, 2.125);
  EXPECT_THAT(std::string(ReadStepRecord(folder, 6).status().message()),
              HasSubstr("6 is beyond the run's end, step 3"));
  EXPECT_THAT(
      std::string(ReadStepRecord(folder + "/ranks", 1).status().message()),
      HasSubstr("has no config.pbtxt"));
}

TrainState At(int64_t step, int64_t samples) {
  TrainState state;
  state.step = step;
  state.samples = samples;
  return state;
}

TEST(WeightsNoteTest, NamesALaterCheckpointIfThatIsNearer) {
  StepRecord record;
  record.step = 79;
  EXPECT_THAT(WeightsNote(record),
              AllOf(HasSubstr("78 steps older than the step's own (those that "
                              "the run began with)"),
                    HasSubstr("no checkpoint is nearer")));
  record.after = At(80, 640);
  record.later_checkpoint = "run/step-80";
  EXPECT_THAT(
      WeightsNote(record),
      HasSubstr("those after step 80 are 2 steps newer, but have learnt "
                "from it: --model=run/step-80 takes them"));
  record.checkpoint = "run/step-77";
  record.before = At(77, 616);
  EXPECT_THAT(WeightsNote(record), HasSubstr("1 step older than the step's own "
                                             "(those after step 77), as no"));
  record.before = At(78, 624);
  EXPECT_EQ(WeightsNote(record), "");
}

// 3 steps of 8, then steps of 4, of which the last checkpoint of the 8 is gone.
TEST(PositionOfStepTest, IsCountedBackFromTheCheckpointAfterIt) {
  StepRecord record;
  record.step = 5;
  record.begun_after = 3;
  record.after = At(6, 36);
  std::vector<std::string> notes;
  EXPECT_EQ(PositionOfStep(record, 4, &notes), 28);
  ASSERT_EQ(notes.size(), 1);
  EXPECT_THAT(notes[0], HasSubstr("right if it was before step 5"));
  // Neither is near.
  record.after = absl::nullopt;
  EXPECT_EQ(PositionOfStep(record, 4, &notes), 16);
  ASSERT_EQ(notes.size(), 2);
  EXPECT_THAT(notes[1], HasSubstr("went on after step 3"));
  // Those around it agree, or the one that it went on from is there.
  record.before = At(3, 24);
  EXPECT_EQ(PositionOfStep(record, 4, &notes), 28);
  record.after = At(6, 36);
  EXPECT_EQ(PositionOfStep(record, 4, &notes), 28);
  EXPECT_EQ(notes.size(), 2);
}

// A token is its byte.
class Bytes final : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::vector<int64_t> Encode(absl::string_view text) const override {
    return {text.begin(), text.end()};
  }
  Encoding EncodeWithPlaces(absl::string_view) const override { return {}; }
  std::string Decode(absl::Span<const int64_t> ids) const override {
    return std::string(ids.begin(), ids.end());
  }
  absl::Status Save(const std::string&) const override {
    return absl::OkStatus();
  }
};

MeasuredRow RowOf(const std::string& text, int64_t padding) {
  MeasuredRow row;
  at::Tensor ids =
      at::full({1, static_cast<int64_t>(text.size()) + padding}, 0, at::kLong);
  for (size_t i = 0; i < text.size(); ++i) {
    ids.mutable_data_ptr<int64_t>()[i] = static_cast<uint8_t>(text[i]);
  }
  row.batch[kInputIds] = ids;
  row.batch[kTokenCounts] =
      at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  row.token_losses = at::full(
      {1, ids.size(1)}, -std::numeric_limits<float>::infinity(), at::kFloat);
  return row;
}

TEST(RowTextTest, ALossBelongsToTheTokenThatWasTheTarget) {
  MeasuredRow row = RowOf("abcd", 3);
  row.token_losses.mutable_data_ptr<float>()[1] = 2.5F;
  const Bytes tokenizer;
  for (const bool causal : {false, true}) {
    const auto texts = TextsOf(row, &tokenizer, causal);
    ASSERT_EQ(texts.size(), 1);
    EXPECT_EQ(texts[0].Text(), "abcd") << "without padding";
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(texts[0].tokens[i].loss.has_value(), i == (causal ? 2 : 1));
    }
  }
  EXPECT_TRUE(TextsOf(row, nullptr, true).empty());
}

// A character of several tokens is shown once it is whole, and a model can't
// send escape sequences to a terminal.
TEST(RowTextTest, Colours) {
  MeasuredRow row = RowOf("a\xc3\xa9\x1b", 0);
  row.token_losses.mutable_data_ptr<float>()[0] = 0.5F;
  row.token_losses.mutable_data_ptr<float>()[1] = 20.0F;
  row.token_losses.mutable_data_ptr<float>()[2] = NAN;
  const Bytes tokenizer;
  const std::string text = ColouredText(TextsOf(row, &tokenizer, true)[0]);
  EXPECT_THAT(text, AllOf(HasSubstr("\x1b[2ma"), HasSubstr("203m\xc3\xa9"),
                          HasSubstr("\xef\xbf\xbd")));
  EXPECT_EQ(text.find("\x1b\x1b"), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - 4), "\x1b[0m");
}

TEST(RowTextTest, ARowThatIsNotText) {
  Batch batch;
  batch["states"] = at::arange(20, at::kFloat).view({1, 20});
  EXPECT_THAT(TensorLines(batch),
              ::testing::ElementsAre("states [1, 20]: 0 1 2 3 4 5 6 7 .."));
}

// As by a resumed run.
TEST(ReadStepRecordTest, ADamagedCheckpointIsPassedOver) {
  const std::string folder = ::testing::TempDir() + "/who_damaged";
  for (const char* name : {"step-00000002", "step-00000006"}) {
    const std::string checkpoint = folder + "/checkpoints/" + name;
    std::filesystem::create_directories(checkpoint);
    std::ofstream(checkpoint + "/manifest.json") << "{\"garbage";
  }
  std::ofstream(folder + "/config.pbtxt") << "train { max_steps: 9 }\n";
  const absl::StatusOr<StepRecord> record = ReadStepRecord(folder, 4);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->checkpoint, "");
  EXPECT_EQ(record->config_from, folder + "/config.pbtxt");
}

// Fails on a row by itself, as an objective of several rows' loss does, or one
// with a fault; or says that such a row has no loss.
class NotAlone final : public Objective {
 public:
  explicit NotAlone(int64_t rows_per_sample, bool says_so = false)
      : says_so_(says_so) {
    plan_.rows_per_sample = rows_per_sample;
  }
  absl::Status Check(Model&, const DatasetReader&) const override {
    return absl::OkStatus();
  }
  int64_t CountTargets(const Batch&, const StepInfo&) const override {
    return 1;
  }
  LossSum Compute(Model&, const Batch& batch, const StepInfo&,
                  UnitRunner&) override {
    const bool alone = batch.at("ids").size(0) == 1;
    if (alone && !says_so_) throw std::logic_error("a row is alone");
    LossSum loss;
    if (!alone) loss.sum = at::zeros({}, at::kFloat);
    loss.count = 1;
    loss.tokens = 7;
    return loss;
  }
  absl::StatusOr<std::vector<int64_t>> Sample(Model&,
                                              const std::vector<int64_t>&,
                                              const SampleOptions&,
                                              UnitRunner&) override {
    return absl::UnimplementedError("");
  }
  bool has_rollouts() const override { return true; }
  RolloutPlan rollout_plan() const override { return plan_; }
  absl::Status Rollout(Model&, std::vector<Batch>*, const RolloutInfo&,
                       UnitRunner&) override {
    return absl::OkStatus();
  }

 private:
  RolloutPlan plan_;
  const bool says_so_;
};

TEST(MeasureRowsTest, OnlyOfSeveralAnswersToAPromptOneCantBeAlone) {
  const auto measure = [](int64_t rows_per_sample, bool says_so = false) {
    RunParts parts;
    parts.model = std::make_unique<IdleModel>(std::vector<ParameterSpec>(), 0);
    parts.objective = std::make_unique<NotAlone>(rows_per_sample, says_so);
    const Indices data;
    MeasureRequest request;
    request.parts = &parts;
    request.data = &data;
    request.rows.resize(2);
    request.micro_batch_size = 2;
    request.step = 1;
    request.gradients = says_so;
    return MeasureRows(request);
  };
  const absl::StatusOr<MeasuredStep> pair = measure(2);
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_FALSE(pair->rows[0].loss_sum.has_value());
  EXPECT_THAT(std::string(measure(1).status().message()),
              HasSubstr("a row is alone"));
  // What else it says of the row is kept.
  const absl::StatusOr<MeasuredStep> told = measure(2, /*says_so=*/true);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_FALSE(told->rows[0].loss_sum.has_value());
  EXPECT_EQ(told->rows[0].tokens, 7);
}

}  // namespace
}  // namespace capstan
