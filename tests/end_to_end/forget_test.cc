// SPDX-License-Identifier: Apache-2.0
//
// trainer forget and train.forgotten_rows: the run that forgets a row is, to
// the bit, the one that had it at weight zero from the start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr char kSettings[] =
    "max_steps: 6 eval_every: 0 save_every: 2 keep_checkpoints: 9 "
    "deterministic: true receipts: true";
constexpr int kLength = 32;  // of a row of text, in bytes

// 20 rows, so that six steps of eight read each two or three times.
RunText TextRun(const std::string& corpus) {
  return RunText()
      .Set("train_data", TextData(corpus, kLength, "shuffle: true"))
      .Set("schedule", "kind: COSINE warmup_steps: 2")
      .Batch(2, 8)
      .Train(kSettings);
}

RunText ChatRun(const std::string& more) {
  std::vector<std::string> lines =
      absl::StrSplit(ReadText(Runfile("datasets/samples/chats.jsonl")), '\n');
  lines.resize(100);
  const std::string path = WriteText(NewTestFolder("chats") + "/chats.jsonl",
                                     absl::StrJoin(lines, "\n") + "\n");
  return RunText()
      .Set("model",
           "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: 32 "
           "intermediate_size: 88 num_hidden_layers: 2 num_attention_heads: 4 "
           "num_key_value_heads: 2 max_position_embeddings: 128 }")
      .Set("train_data",
           absl::StrCat("[plugin/capstan.chat.Config] { path: \"", path,
                        "\" tokenizer: \"",
                        Runfile("datasets/samples/tokenizer"),
                        "\" max_length: 96 shuffle: true ", more, " }"))
      .Batch(2, 8)
      .Train(kSettings);
}

// A pair is a row.
RunText PairRun() {
  std::string rows;
  for (int i = 0; i < 22; ++i) {
    absl::StrAppend(
        &rows, "{\"prompt\": [{\"role\": \"user\", \"content\": \"Count ", i,
        "\"}], \"chosen\": [{\"role\": \"assistant\", \"content\": \"Yes ",
        i * i,
        "\"}], \"rejected\": [{\"role\": \"assistant\", \"content\": \"No ", i,
        "\"}]}\n");
  }
  const std::string path =
      WriteText(NewTestFolder("pairs") + "/pairs.jsonl", rows);
  return ChatRun("")
      .Set("objective", "[plugin/capstan.dpo.Config] { loss: ORPO beta: 0.5 }")
      .Set("train_data", absl::StrCat("[plugin/capstan.chat.Config] { path: \"",
                                      path, "\" tokenizer: \"",
                                      Runfile("datasets/samples/tokenizer"),
                                      "\" kind: PREFERENCE max_length: 96 }"));
}

Json JsonOf(std::vector<std::string> words) {
  words.push_back("--json");
  const TrainerResult result = RunTrainer(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return Json::parse(result.out, nullptr, false);
}

// The first row of a step, as who names it.
int64_t RowOf(const std::string& folder, int step) {
  return JsonOf(
      {"who", folder, absl::StrCat("--step=", step)})["rows"][0]["sample"];
}

std::string CopyOf(const std::string& run) {
  const std::string folder = NewTestFolder("copy") + "/run";
  fs::copy(run, folder, fs::copy_options::recursive);
  return folder;
}

// The chain's hash and the rows that had weight zero, by step.
std::map<int64_t, std::string> Receipts(const std::string& folder,
                                        const std::string& key) {
  std::map<int64_t, std::string> by_step;
  for (const auto line :
       absl::StrSplit(ReadText(folder + "/receipts.jsonl"), '\n')) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("step")) {
      by_step[json["step"]] = json.value(key, "");
    }
  }
  return by_step;
}

std::string WeightsOf(const std::string& folder) {
  return ReadText(folder + "/final/model.safetensors");
}

std::string MustForget(const std::string& folder, int64_t row) {
  const std::string to = NewTestFolder("forgot") + "/run";
  const TrainerResult result =
      RunTrainer({"forget", folder, absl::StrCat("--row=", row), "--yes",
                  "--output_dir=" + to});
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  return to;
}

// Forgets the first row of step `step`, which `first` is the first to use.
void ExpectForgotten(const RunText& run, int step) {
  const std::string folder = MustTrain(run);
  const int64_t row = RowOf(folder, step);
  const std::string forgot = MustForget(folder, row);
  const std::string fresh =
      MustTrain(RunText(run).Train(absl::StrCat("forgotten_rows: ", row)));
  EXPECT_EQ(WeightsOf(forgot), WeightsOf(fresh)) << run.Text();
  EXPECT_NE(WeightsOf(forgot), WeightsOf(folder)) << run.Text();
  const auto was = Receipts(folder, "chain");
  const auto is = Receipts(forgot, "chain");
  EXPECT_EQ(is, Receipts(fresh, "chain"));
  const auto rows = Receipts(forgot, "forgotten");
  EXPECT_EQ(rows, Receipts(fresh, "forgotten"));
  bool met = false;
  for (const auto& [at, chain] : was) {
    met |= !rows.at(at).empty();
    EXPECT_EQ(is.at(at) != chain, met) << at;
  }
  EXPECT_TRUE(met);
  EXPECT_THAT(rows.at(step), HasSubstr(absl::StrCat(row)));
  EXPECT_EQ(JsonOf({"audit", forgot, "--step=6"})["difference"], nullptr);
}

class ForgetTest : public ::testing::Test {
 protected:
  const std::string corpus_ = CorpusPiece(20 * kLength + 1);
};

TEST_F(ForgetTest, TheBitsAreThoseOfARunThatNeverHadIt) {
  ExpectForgotten(TextRun(corpus_).Ddp(2), 3);
  ExpectForgotten(TextRun(corpus_).Fsdp(2), 3);
  // Micro-batches that have no other row.
  ExpectForgotten(TextRun(corpus_).Fsdp(2).Batch(1, 8), 3);
  ExpectForgotten(TextRun(corpus_).Zero2(2).Batch(1, 2), 2);
  // Of which the new run has the steps.
  ExpectForgotten(TextRun(corpus_).Train("max_epochs: 2.4"), 3);
}

TEST_F(ForgetTest, OfConversationsPackedOrNot) {
  ExpectForgotten(ChatRun("").Ddp(2), 3);
  ExpectForgotten(ChatRun("packing: BEST_FIT").Ddp(2), 2);
  RunText grouped = ChatRun("").Fsdp(2);
  ExpectForgotten(grouped.Set("batch",
                              "micro_batch_size: 1 global_batch_size: 8 "
                              "group_by_length: true"),
                  3);
}

TEST_F(ForgetTest, OfPairsTheWholeOne) {
  ExpectForgotten(PairRun().Ddp(2), 2);
  ExpectForgotten(PairRun().Fsdp(2).Batch(1, 4), 2);
}

// One chain for a training, however it is divided.
TEST_F(ForgetTest, OnOtherRanksTheSame) {
  const std::string rows = "forgotten_rows: [7, 3, 11]";
  const std::string one = MustTrain(TextRun(corpus_).Train(rows));
  for (const RunText& other :
       {TextRun(corpus_).Ddp(2), TextRun(corpus_).Fsdp(4),
        TextRun(corpus_).Ddp(2).Train("sequence_parallel: 2")}) {
    const std::string folder = MustTrain(RunText(other).Train(rows));
    EXPECT_EQ(Receipts(folder, "chain"), Receipts(one, "chain"));
    EXPECT_EQ(WeightsOf(folder), WeightsOf(one));
  }
}

// What stands in for a micro-batch that has no other row counts nowhere.
TEST_F(ForgetTest, TheOthersAreCountedAsIfThereWereNoOther) {
  for (const RunText& run : {TextRun(corpus_), PairRun()}) {
    RunText whole = run;
    whole.Batch(8, 8).Train("forgotten_rows: [7, 3]");
    const Metrics want = ReadMetrics(MustTrain(whole));
    for (const RunText& alone : {RunText(whole).Fsdp(2).Batch(1, 8),
                                 RunText(whole).Ddp(2).Batch(1, 8)}) {
      const Metrics got = ReadMetrics(MustTrain(alone));
      ASSERT_EQ(got.steps.size(), want.steps.size());
      for (size_t i = 0; i < want.steps.size(); ++i) {
        EXPECT_NEAR(got.losses()[i], want.losses()[i], 2e-5) << i;
        EXPECT_NEAR(got.grad_norms()[i], want.grad_norms()[i],
                    1e-3 * want.grad_norms()[i]);
        EXPECT_EQ(got.steps[i]["trained_tokens"],
                  want.steps[i]["trained_tokens"]);
      }
    }
  }
}

// Nothing of what is in the row is left.
TEST_F(ForgetTest, WhatIsInTheRowDoesNotMatter) {
  constexpr int kRow = 7;
  for (const RunText& run :
       {TextRun(corpus_), TextRun(corpus_).Batch(1, 4).Ddp(2)}) {
    RunText forgets = run;
    forgets.Train(absl::StrCat("forgotten_rows: ", kRow));
    const std::string weights = WeightsOf(MustTrain(forgets));
    const std::string text = ReadText(corpus_);
    std::string other = text;
    // Its first byte is the last target of the row before it.
    other.replace(kRow * kLength + 1, kLength - 1, kLength - 1, '\x01');
    WriteText(corpus_, other);
    EXPECT_EQ(WeightsOf(MustTrain(forgets)), weights);
    EXPECT_NE(WeightsOf(MustTrain(run)), weights);
    WriteText(corpus_, text);
  }
}

TEST_F(ForgetTest, TheCostIsToldBefore) {
  const std::string folder = MustTrain(TextRun(CorpusPiece(8 << 10)).Ddp(2));
  const auto before = Snapshot(fs::path(folder).parent_path().string());
  const auto forget = [&](int64_t row) {
    const TrainerResult told =
        RunTrainer({"forget", folder, absl::StrCat("--row=", row)});
    EXPECT_EQ(told.exit_code, 0) << told.err;
    return told.out;
  };
  EXPECT_THAT(forget(RowOf(folder, 5)),
              AllOf(HasSubstr("used in       step 5\n"),
                    HasSubstr("checkpoints/step-00000004\n"),
                    HasSubstr("2 of 6 steps (33 %), about "),
                    HasSubstr("--yes begins")));
  // A row that is named twice is one.
  const int64_t row_5 = RowOf(folder, 5);
  const auto forget_both = [&](int64_t other) {
    return RunTrainer(
               {"forget", folder, absl::StrCat("--row=", row_5, ",", other)})
        .out;
  };
  EXPECT_THAT(forget_both(row_5),
              AllOf(HasSubstr(absl::StrCat("rows          ", row_5, "\n")),
                    HasSubstr(absl::StrCat("-without-", row_5, "\n"))));
  EXPECT_THAT(forget_both(RowOf(folder, 6)),
              HasSubstr(absl::StrCat("-without-", row_5, "-and-1-more\n")));
  EXPECT_THAT(forget(RowOf(folder, 2)),
              AllOf(HasSubstr("goes on from  the beginning, as no checkpoint "
                              "is from before step 2"),
                    HasSubstr("6 of 6 steps (100 %)")));
  // 48 of the 255 rows were used.
  int64_t unused = 0;
  std::set<int64_t> used;
  for (int step = 1; step <= 6; ++step) {
    const Json who = JsonOf({"who", folder, absl::StrCat("--step=", step)});
    for (const Json& row : who["rows"]) used.insert(int64_t{row["sample"]});
  }
  while (used.count(unused) > 0) ++unused;
  const TrainerResult never =
      RunTrainer({"forget", folder, absl::StrCat("--row=", unused), "--yes"});
  EXPECT_EQ(never.exit_code, 0) << never.err;
  EXPECT_THAT(never.out,
              HasSubstr("hasn't used them up to step 6: there is nothing to "
                        "run again"));
  EXPECT_EQ(Snapshot(fs::path(folder).parent_path().string()), before);
  // final/ has learnt it, whatever checkpoints are left.
  const int64_t row = RowOf(folder, 5);
  fs::remove_all(folder + "/checkpoints/step-00000006");
  EXPECT_THAT(forget(row), AllOf(HasSubstr("used in       step 5\n"),
                                 HasSubstr("2 of 6 steps (33 %), about ")));
  ExpectOneError(RunTrainer({"forget", folder, absl::StrCat("--row=", row),
                             "--set", "train.max_steps=60"}),
                 {"can't be told", "the schedule's curve depends on it"});
}

TEST_F(ForgetTest, FromTheBeginningWithoutACheckpointBefore) {
  const RunText run = TextRun(corpus_).Train("keep_checkpoints: 1").Ddp(2);
  const std::string folder = MustTrain(run);
  const int64_t row = RowOf(folder, 1);
  EXPECT_EQ(WeightsOf(MustForget(folder, row)),
            WeightsOf(MustTrain(
                RunText(run).Train(absl::StrCat("forgotten_rows: ", row)))));
}

// A second row, of a run that has forgotten one.
TEST_F(ForgetTest, OneAfterTheOther) {
  const RunText run = TextRun(corpus_);
  const std::string folder = MustTrain(run);
  const int64_t row = RowOf(folder, 3);
  const std::string once = MustForget(folder, row);
  const std::string who = RunTrainer({"who", once, "--step=3"}).out;
  EXPECT_THAT(who, HasSubstr(absl::StrCat("sample ", row, " had weight zero")));
  const Json step = JsonOf({"who", once, "--step=3"});
  EXPECT_EQ(step["loss"], step["recorded_loss"]);
  for (const Json& left : step["rows"]) EXPECT_NE(left["sample"], row);
  EXPECT_EQ(step["rows"].size() + step["notes"].size(), 8u);
  const TrainerResult again =
      RunTrainer({"forget", once, absl::StrCat("--row=", row)});
  EXPECT_THAT(
      again.out,
      AllOf(HasSubstr(absl::StrCat("forgotten  ", row, " already")),
            HasSubstr("nothing to run again"), Not(HasSubstr("never used"))));
  const int64_t second = RowOf(once, 4);
  EXPECT_EQ(WeightsOf(MustForget(once, second)),
            WeightsOf(MustTrain(RunText(run).Train(
                absl::StrCat("forgotten_rows: [", second, ", ", row, "]")))));
}

// final/ gets the best evaluation's weights, of a step before those that are
// done again.
TEST_F(ForgetTest, TheBestIsThereStill) {
  // What the run learns makes this worse.
  const std::string other =
      WriteText(NewTestFolder("other") + "/text.txt", std::string(129, '\x07'));
  const RunText run = TextRun(CorpusPiece(8 << 10))
                          .Set("eval_data", TextData(other, kLength))
                          .Train("eval_every: 2 keep_best: true");
  const std::string folder = MustTrain(run);
  ASSERT_EQ(ReadJson(folder + "/summary.json")["best_step"], 2);
  const int64_t row = RowOf(folder, 5);
  const std::string forgot = MustForget(folder, row);
  EXPECT_THAT(CheckpointSteps(forgot), ::testing::ElementsAre(2, 4, 6));
  EXPECT_EQ(ReadJson(forgot + "/summary.json")["best_step"], 2);
  EXPECT_EQ(WeightsOf(forgot), WeightsOf(MustTrain(RunText(run).Train(
                                   absl::StrCat("forgotten_rows: ", row)))));
  fs::remove_all(folder + "/checkpoints/step-00000002");
  EXPECT_THAT(RunTrainer({"forget", folder, absl::StrCat("--row=", row)}).out,
              AllOf(HasSubstr("the beginning"), HasSubstr("and has the best")));
}

TEST_F(ForgetTest, ARunThatWasChangedOnItsWayIsRefused) {
  const RunText run = TextRun(CorpusPiece(8 << 10))
                          .Set("schedule", "kind: CONSTANT")
                          .Train("resume: AUTO keep_checkpoints: 1");
  const std::string first = MustTrain(run);
  const std::string row = absl::StrCat("--row=", RowOf(first, 1));
  const std::string longer =
      RunTrainer({"forget", first, row, "--set", "train.max_steps=8"}).out;
  EXPECT_THAT(longer, HasSubstr("on to step 8, as its config says, about "));
  const std::string other_seed = "seed: 5 resume_with_changes: \"train.seed\" ";
  const std::vector<std::pair<RunText, std::string>> changes = {
      {RunText(run).Train(other_seed),
       "was changed while it went on (events.jsonl"},
      {RunText(run).Batch(2, 4), "had a batch.global_batch_size of 4"}};
  for (const auto& [changed, why] : changes) {
    const std::string folder = CopyOf(first);
    MustTrain(RunText(changed).Output(folder).Train("max_steps: 8"));
    EXPECT_THAT(CheckpointSteps(folder), ::testing::ElementsAre(8));
    // By its checkpoint it would be another run's.
    ExpectOneError(RunTrainer({"forget", folder, row}), {"can't be told", why});
  }
}

TEST_F(ForgetTest, OneBegins) {
  const std::string folder = MustTrain(TextRun(CorpusPiece(8 << 10)).Ddp(2));
  const std::string row = absl::StrCat("--row=", RowOf(folder, 5));
  const std::string to = NewTestFolder("forgot");
  const std::vector<std::string> words = {"forget", folder, row, "--yes",
                                          "--output_dir=" + to};
  TrainerOptions options;
  options.environment = {{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", "1"}};
  ExpectOneError(RunTrainer(words, options), {"start it once", "WORLD_SIZE"});
  EXPECT_TRUE(fs::is_empty(to));
  // From no checkpoint that is damaged.
  const std::string damaged = CopyOf(folder);
  for (const auto& file :
       fs::directory_iterator(damaged + "/checkpoints/step-00000004")) {
    if (file.path().extension() == ".json") continue;
    std::string bytes = ReadText(file.path().string());
    bytes.back() ^= 1;
    WriteText(file.path().string(), bytes);
  }
  ExpectOneError(RunTrainer({"forget", damaged, row, "--yes"}),
                 {"step-00000004", "is damaged"});
  // Nor with receipts that aren't the run's; that lines are missing is told.
  const std::string changed = CopyOf(folder);
  const std::string receipts = changed + "/receipts.jsonl";
  const std::string lines = ReadText(receipts);
  WriteText(receipts, lines.substr(lines.find('\n') + 1));
  ExpectOneError(RunTrainer({"forget", changed, row}),
                 {"can't go on with the old one's receipts",
                  absl::StrCat(receipts, ": line 1")});
  constexpr char kNoLine[] = "receipts.jsonl has no line of step 4";
  fs::remove(receipts);
  EXPECT_THAT(RunTrainer({"forget", changed, row}).out, HasSubstr(kNoLine));
  EXPECT_THAT(RunTrainer({"forget", folder, row}).out, Not(HasSubstr(kNoLine)));
  // An empty folder will do.
  EXPECT_EQ(RunTrainer(words).exit_code, 0);
  EXPECT_THAT(CheckpointSteps(to), ::testing::ElementsAre(4, 6));
  ExpectOneError(RunTrainer(words), {"exists already: go on with it"});
  fs::remove(to + "/config.pbtxt");
  ExpectOneError(RunTrainer(words), {"exists already: remove it"});
}

// The old run's folder is to be removed.
TEST_F(ForgetTest, LatestNamesTheNewRun) {
  const std::string runs = NewTestFolder("runs");
  const std::string folder =
      MustTrain(TextRun(corpus_).Output(runs + "/first"));
  WriteText(runs + "/latest", "first\n");
  const std::string row = absl::StrCat("--row=", RowOf(folder, 5));
  const std::string elsewhere = NewTestFolder("forgot") + "/run";
  const TrainerResult away = RunTrainer(
      {"forget", runs + "/latest", row, "--yes", "--output_dir=" + elsewhere});
  EXPECT_EQ(away.exit_code, 0) << away.err;
  EXPECT_THAT(away.out, HasSubstr("/latest still names the old run"));
  EXPECT_EQ(LatestRun(runs), folder);
  const TrainerResult beside =
      RunTrainer({"forget", runs + "/latest", row, "--yes"});
  EXPECT_EQ(beside.exit_code, 0) << beside.err;
  EXPECT_THAT(beside.out, HasSubstr("/latest now names the new run\n"));
  EXPECT_THAT(LatestRun(runs), HasSubstr("/first-without-"));
  fs::remove_all(folder);
  EXPECT_TRUE(fs::exists(LatestRun(runs) + "/final"));
}

TEST_F(ForgetTest, WhatCannotBeForgottenIsTold) {
  const RunText run = TextRun(corpus_).Train("resume: AUTO");
  const std::string folder = MustTrain(run);
  ExpectOneError(RunTrainer({"forget", folder, "--row=20"}),
                 {"--row=20: train_data has no row 20, but those from 0 to "
                  "19"});
  for (const char* address : {"s3://bucket/run", "file:///run"}) {
    ExpectOneError(RunTrainer({"forget", folder, "--row=3",
                               absl::StrCat("--output_dir=", address)}),
                   {"--output_dir", address, "a local folder"});
  }
  ExpectOneError(RunTrainer({"forget", folder, "--row=3",
                             "--output_dir=" + MustTrain(run)}),
                 {"holds another run already: name another --output_dir"});
  ExpectOneError(
      RunTrainer({"forget", folder, "--row=3", "--set", "train.resume=NEVER"}),
      {"train.resume is forget's own to set"});
  for (const char* none : {"--row=-1", "--row=99999999999999999999999"}) {
    ExpectOneError(RunTrainer({"forget", folder, none}),
                   {"--row", "negative or too large"});
  }
  ExpectOneError(RunTrainer({"forget", folder, "--row=3", "--set",
                             "batch.micro_batch_size=4"}),
                 {"batch.micro_batch_size might round sums otherwise"});
  for (const char* inside : {"", "/in", "/checkpoints/step-00000004"}) {
    ExpectOneError(RunTrainer({"forget", folder, "--row=3",
                               absl::StrCat("--output_dir=", folder, inside)}),
                   {"--output_dir", "name one outside of it"});
  }
  // A resumed run doesn't forget what it has learnt.
  const int64_t row = RowOf(folder, 1);
  for (const char* allowed : {"", " resume_with_changes: \"train\""}) {
    RunText resumed = run;
    resumed.Output(folder).Train(
        absl::StrCat("max_steps: 8 forgotten_rows: ", row, allowed));
    ExpectOneError(
        RunTrainer({"--config=" + resumed.File()}),
        {absl::StrCat("has trained on row ", row), "`trainer forget`"});
  }
  const std::string text = ReadText(corpus_);
  std::string other = text;
  other[100] ^= 1;
  WriteText(corpus_, other);
  ExpectOneError(RunTrainer({"forget", folder, "--row=3"}),
                 {"can't be told", "train_data"});
  EXPECT_THAT(RunTrainer({"forget", folder, "--row=3"}).err,
              Not(HasSubstr("resume_with_changes")));
  WriteText(corpus_, text);
  const std::string config = ReadText(folder + "/config.pbtxt");
  WriteText(folder + "/config.pbtxt", "");
  ExpectOneError(RunTrainer({"forget", folder, "--row=3"}),
                 {folder + "/config.pbtxt is empty: put back"});
  WriteText(folder + "/config.pbtxt", config);
  fs::remove_all(folder + "/checkpoints");
  ExpectOneError(RunTrainer({"forget", folder, "--row=3"}),
                 {"has no checkpoint"});
}

}  // namespace
}  // namespace capstan
