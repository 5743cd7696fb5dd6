// SPDX-License-Identifier: Apache-2.0
//
// What a compare config says, and the combinations that it makes.
#include "desk/compare/compare_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/any.pb.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kRun[] = R"(
model { [plugin/capstan.llama.Config] {
  vocab_size: 256 hidden_size: 16 intermediate_size: 32 num_hidden_layers: 1
  num_attention_heads: 2 num_key_value_heads: 2 max_position_embeddings: 16 } }
objective { [plugin/capstan.causal_lm.Config] {} }
train_data { [plugin/capstan.text.Config] {
  path: "text.txt" tokenizer { bytes {} } sequence_length: 16 } }
strategy { [plugin/capstan.ddp.Config] {} }
precision { [plugin/capstan.fp32.Config] {} }
optimizer { [plugin/capstan.adamw.Config] { learning_rate: 1e-3 } }
batch { micro_batch_size: 2 }
train { max_steps: 5 resume: AUTO }
)";
constexpr char kShared[] = "config: \"run.pbtxt\"\n";
constexpr char kSingle[] = "strategy { [plugin/capstan.single.Config] {} }\n";
constexpr char kDdp[] = "strategy { [plugin/capstan.ddp.Config] {} }\n";

class CompareConfigTest : public ::testing::Test {
 protected:
  CompareConfigTest()
      : host_({absl::StrCat(std::getenv("TEST_SRCDIR"),
                            "/capstan/trainer/plugins")}) {
    folder_ = (std::filesystem::path(::testing::TempDir()) /
               ::testing::UnitTest::GetInstance()->current_test_info()->name())
                  .lexically_normal()
                  .string();
    std::filesystem::create_directories(folder_ + "/elsewhere");
    context_.host = &host_;
    // The configs name each other by their own folder.
    context_.caller_folder = folder_ + "/elsewhere";
    Write("run.pbtxt", kRun);
    Write("text.txt", std::string(1000, 'a'));
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }

  absl::StatusOr<LoadedCompare> Load(
      const std::string& text, const std::vector<std::string>& overrides = {}) {
    Write("mine.pbtxt", text);
    return LoadCompareConfig("../mine.pbtxt", overrides, context_);
  }

  std::string ErrorOf(const std::string& text) {
    return std::string(Load(text).status().message());
  }

  absl::StatusOr<std::vector<Combination>> Cross(const std::string& text,
                                                 int gpus = 0) {
    const absl::StatusOr<LoadedCompare> loaded = Load(text);
    if (!loaded.ok()) return loaded.status();
    return CrossAxes(*loaded, gpus, host_);
  }

  std::string CrossErrorOf(const std::string& text) {
    return std::string(Cross(text).status().message());
  }

  PluginHost host_;
  std::string folder_;
  ConfigContext context_;
};

std::vector<std::string> Ids(const std::vector<Combination>& combinations) {
  std::vector<std::string> ids;
  for (const Combination& combination : combinations) {
    const bool skipped =
        combination.run.status == ComparedRun::Status::kSkipped;
    ids.push_back(absl::StrCat(combination.run.id, skipped ? " skipped" : ""));
  }
  return ids;
}

// runs/NAME/latest stays the run's.
TEST_F(CompareConfigTest, ARunsConfigHasFoldersOfItsOwn) {
  Write("own.pbtxt", kRun);
  const auto loaded = LoadCompareConfig("../own.pbtxt", {}, context_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.name(), "own_compare");
}

TEST_F(CompareConfigTest, EmptyAxesAreWhatTheRunSays) {
  const auto loaded = Load(absl::StrCat(kShared, "processes: 2"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.name(), "mine");
  ASSERT_EQ(loaded->config.strategy_size(), 1);
  EXPECT_EQ(TypeOf(loaded->config.strategy(0)), "capstan.ddp.Config");
  ASSERT_EQ(loaded->config.precision_size(), 1);
  EXPECT_EQ(TypeOf(loaded->config.precision(0)), "capstan.fp32.Config");
}

TEST_F(CompareConfigTest, OverridesOfTheFileThenOfTheCommandLine) {
  const auto loaded = Load(absl::StrCat(kShared,
                                        "processes: 2 set: "
                                        "\"train.max_steps=7\" set: "
                                        "\"train.seed=3\""),
                           {"train.max_steps=9"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->shared.config.train().max_steps(), 9);
  EXPECT_EQ(loaded->shared.config.train().seed(), 3);
}

TEST_F(CompareConfigTest, TheGlobalBatchIsOneThatAllDivide) {
  const auto loaded = Load(absl::StrCat(kShared, "processes: [1, 2, 3, 4]"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->shared.config.batch().global_batch_size(), 24);
  const auto given = Load(absl::StrCat(kShared,
                                       "processes: [1, 2, 3] set: "
                                       "\"batch.global_batch_size=8\""));
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->shared.config.batch().global_batch_size(), 8);
}

TEST_F(CompareConfigTest, RepeatedSlotsKnowTheirPlaces) {
  const auto loaded =
      Load(absl::StrCat(kShared, kSingle, kDdp, "processes: 1"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->locations.at("strategy[1]"), "../mine.pbtxt:3:1");
  EXPECT_THAT(
      CrossErrorOf(absl::StrCat(
          kShared,
          "strategy { [plugin/capstan.ddp.Config] {} }\n"
          "strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: -1 } }\n"
          "processes: 1")),
      AllOf(HasSubstr("mine.pbtxt:3:"),
            HasSubstr("strategy[1].bucket_cap_mib")));
}

TEST_F(CompareConfigTest, WhatARunWouldFindOutForItself) {
  EXPECT_THAT(ErrorOf(absl::StrCat(kShared,
                                   "processes: 1 set: \"train.max_steps=0\" "
                                   "set: \"train.max_epochs=2\"")),
              HasSubstr("max_epochs: compare counts steps"));
  EXPECT_THAT(
      ErrorOf(absl::StrCat(
          kShared, "processes: 1 set: \"batch.micro_batch_size=AUTO\"")),
      HasSubstr("micro_batch_size: runs that are compared"));
}

TEST_F(CompareConfigTest, Mistakes) {
  EXPECT_THAT(ErrorOf("processes: 1"), HasSubstr("config: is not set"));
  EXPECT_THAT(ErrorOf(kShared), HasSubstr("processes: list the numbers"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kShared, "processes: [1, 0]")),
              AllOf(HasSubstr("mine.pbtxt:2:"), HasSubstr("is 0")));
  EXPECT_THAT(ErrorOf(absl::StrCat(kShared, "processes: [2, 2]")),
              HasSubstr("2 is listed twice"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kShared, "proceses: 1")),
              AllOf(HasSubstr("mine.pbtxt:2:"),
                    HasSubstr("did you mean \"processes\"")));
  EXPECT_THAT(ErrorOf("config: \"none.pbtxt\" processes: 1"),
              HasSubstr("none.pbtxt: no such file"));
  EXPECT_THAT(
      ErrorOf(absl::StrCat(kShared, "processes: 1 set: \"train.steps=1\"")),
      HasSubstr("--set train.steps=1"));
  EXPECT_THAT(
      ErrorOf(absl::StrCat(kShared, "processes: 1\n",
                           "bound { precision: \"capstan.fp16\" loss: 1 }")),
      AllOf(HasSubstr("mine.pbtxt:3:"),
            HasSubstr("bound[0].precision: \"capstan.fp16\" is no"),
            HasSubstr("capstan.fp32, fp32")));
  EXPECT_THAT(
      ErrorOf(absl::StrCat(kShared, kDdp, "processes: [1, 2]\n",
                           "bound { loss: 1 }\nbound { strategy: \"dp\" }")),
      AllOf(HasSubstr("mine.pbtxt:5:"),
            HasSubstr("bound[1].strategy: \"dp\" is no strategy that is "
                      "compared; name one of: capstan.ddp, ddp")));
  EXPECT_THAT(
      ErrorOf(absl::StrCat(kShared, "processes: 1\n",
                           "bound { precision: \"capstan.fp32\" loss: -1 }")),
      HasSubstr("bound[0].loss: must not be negative"));
}

TEST_F(CompareConfigTest, BoundsByTheDtypeUnlessGiven) {
  CompareConfig config;
  PrecisionPolicy policy;
  absl::optional<OwnCurve> own_curve;
  const auto bounds = [&](const char* strategy, const char* precision) {
    policy.compute = precision == std::string("fp32")
                         ? c10::ScalarType::Float
                         : c10::ScalarType::BFloat16;
    return BoundsOf(config, {absl::StrCat("a.", strategy), strategy},
                    {absl::StrCat("a.", precision), precision}, policy,
                    own_curve)
        .Text();
  };
  EXPECT_EQ(bounds("ddp", "fp32"), "loss 1e-05, gradient norm 0.0001");
  EXPECT_EQ(bounds("ddp", "bf16"), "loss 0.001, gradient norm 0.01");
  config.add_bound()->set_precision("a.bf16");
  config.mutable_bound(0)->set_loss(0.5);
  EXPECT_EQ(bounds("ddp", "fp32"), "loss 1e-05, gradient norm 0.0001");
  EXPECT_EQ(bounds("ddp", "bf16"), "loss 0.5, gradient norm 0.01");
  own_curve = OwnCurve{0.2, "now and then"};
  EXPECT_EQ(bounds("ddp", "fp32"), "loss 0.2 (now and then)");
  EXPECT_EQ(bounds("ddp", "bf16"), "loss 0.5 (now and then)");
}

// All are exact but one; what it doesn't say stays as it was.
TEST_F(CompareConfigTest, TheLastBoundForARunCounts) {
  const auto combinations = Cross(absl::StrCat(
      kShared, kSingle, kDdp,
      "strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 } }\n"
      "processes: 1\n"
      "bound { loss: 0 grad_norm: 0 bit_identical: true peak_memory: 3 }\n"
      "bound { strategy: \"capstan.ddp\" step_time: 1.5 }\n"
      "bound { strategy: \"ddp { bucket_cap_mib: 5 }\" precision: \"fp32\"\n"
      "        loss: 0.1 bit_identical: false }\n"));
  ASSERT_TRUE(combinations.ok()) << combinations.status();
  std::vector<std::string> texts;
  for (const Combination& one : *combinations) {
    texts.push_back(one.run.bounds.Text());
  }
  EXPECT_THAT(
      texts,
      ElementsAre("loss 0, gradient norm 0, bit-identical, peak memory x 3",
                  "loss 0, gradient norm 0, bit-identical, step time x 1.5, "
                  "peak memory x 3",
                  "loss 0.1, gradient norm 0, step time x 1.5, peak memory x "
                  "3"));
}

TEST_F(CompareConfigTest, CrossesTheAxesAndLeavesOutWhatIsRefused) {
  const auto combinations =
      Cross(absl::StrCat(kShared, kSingle, kDdp,
                         "precision { [plugin/capstan.fp32.Config] {} }\n"
                         "precision { [plugin/capstan.bf16.Config] {} }\n"
                         "processes: [1, 2]"));
  ASSERT_TRUE(combinations.ok()) << combinations.status();
  EXPECT_THAT(Ids(*combinations),
              ElementsAre("01-single-fp32-1", "02-single-fp32-2 skipped",
                          "03-ddp-fp32-1", "04-ddp-fp32-2", "05-single-bf16-1",
                          "06-single-bf16-2 skipped", "07-ddp-bf16-1",
                          "08-ddp-bf16-2"));
  EXPECT_THAT((*combinations)[1].run.reason, HasSubstr("one rank"));
  const Combination& last = combinations->back();
  EXPECT_EQ(last.run.Label(), "ddp bf16 on 2 ranks");
  EXPECT_EQ(last.run.accumulation, 1);
  EXPECT_EQ((*combinations)[6].run.accumulation, 2);
  EXPECT_EQ(TypeOf(last.config.strategy()), "capstan.ddp.Config");
  EXPECT_EQ(TypeOf(last.config.precision()), "capstan.bf16.Config");
  EXPECT_EQ(static_cast<int>(last.config.launch().processes()), 2);
  EXPECT_EQ(last.config.batch().global_batch_size(), 4);
  EXPECT_EQ(last.config.train().resume(), Train::NEVER);
}

TEST_F(CompareConfigTest, ABatchThatDoesNotDivideIsARefusalForLocalSteps) {
  const auto combinations = Cross(absl::StrCat(
      kShared, kDdp, "strategy { [plugin/capstan.diloco.Config] {} }\n",
      "processes: [3, 2] set: \"batch.global_batch_size=8\""));
  ASSERT_TRUE(combinations.ok()) << combinations.status();
  EXPECT_THAT(Ids(*combinations),
              ElementsAre("01-ddp-fp32-3", "02-ddp-fp32-2",
                          "03-diloco-fp32-3 skipped", "04-diloco-fp32-2"));
  EXPECT_EQ((*combinations)[0].run.accumulation, 2);
  EXPECT_THAT((*combinations)[2].run.reason,
              AllOf(HasSubstr("global_batch_size"), HasSubstr("2 x 3")));
}

TEST_F(CompareConfigTest, MoreRanksThanGpusIsARefusal) {
  const auto combinations =
      Cross(absl::StrCat(kShared, kDdp, kSingle, "processes: [1, 2]"),
            /*gpus=*/1);
  ASSERT_TRUE(combinations.ok()) << combinations.status();
  EXPECT_THAT((*combinations)[1].run.reason, HasSubstr("1 GPU:"));
}

TEST_F(CompareConfigTest, NothingLeftIsAnError) {
  EXPECT_THAT(CrossErrorOf(absl::StrCat(kShared, kSingle, "processes: [2, 3]")),
              AllOf(HasSubstr("mine.pbtxt:2:1: strategy: there is nothing to "
                              "compare"),
                    HasSubstr("one rank")));
}

// It passed, compared with nothing.
TEST_F(CompareConfigTest, ASingleRunIsAnError) {
  EXPECT_THAT(CrossErrorOf(absl::StrCat(kShared, "processes: 1")),
              HasSubstr("strategy: there is nothing to compare: ddp fp32 on 1 "
                        "rank is the only run; list several"));
  EXPECT_THAT(CrossErrorOf(absl::StrCat(kShared, kSingle, "processes: [1, 2]")),
              AllOf(HasSubstr("is the only run"), HasSubstr("one rank")));
}

TEST_F(CompareConfigTest, ARunsOwnConfigIsComparedUnderEachStrategy) {
  const absl::StatusOr<LoadedCompare> loaded =
      LoadCompareConfig("../run.pbtxt", {}, context_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.strategy_size(), 4);
  EXPECT_THAT(loaded->config.processes(), ElementsAre(1, 2));
  EXPECT_EQ(loaded->shared.config.train().max_steps(), 5);
  // A mistake in it is told as that of a run.
  Write("run.pbtxt", absl::StrCat(kRun, "launch { process: 1 }"));
  EXPECT_THAT(
      std::string(
          LoadCompareConfig("../run.pbtxt", {}, context_).status().message()),
      HasSubstr("\"processes\""));
}

TEST_F(CompareConfigTest, OverridesThatNoRunWouldGetAreErrors) {
  const std::string text = absl::StrCat(kShared, kSingle, "processes: [1, 2]");
  for (const char* set : {"output_dir=x", "name=x", "train.resume=AUTO",
                          "strategy=capstan.fsdp", "launch.processes=4"}) {
    EXPECT_THAT(std::string(Load(text, {set}).status().message()),
                HasSubstr(absl::StrCat("--set ", set, ": no run would get")));
  }
  // What the comparison doesn't say itself.
  EXPECT_TRUE(Load(text, {"precision=capstan.bf16", "train.max_steps=3"}).ok());
}

TEST_F(CompareConfigTest, TheSharedRunsMistakesAreErrors) {
  EXPECT_THAT(
      CrossErrorOf(absl::StrCat(
          kShared,
          "processes: 1 "
          "set: \"train.sample_prompts={prompt: 'longer than 16 bytes'}\"")),
      HasSubstr("sample_prompts"));
}

TEST(SlotLabelsTest, AreShortAndDiffer) {
  CompareConfig config;
  const auto add = [&config](const std::string& type) {
    config.add_strategy()->set_type_url("plugin/" + type);
  };
  add("capstan.single.Config");
  add("capstan.ddp.Config");
  add("acme.ddp.Config");
  add("capstan.single.Config");
  EXPECT_THAT(SlotLabels(config.strategy()),
              ElementsAre("single", "capstan.ddp", "acme.ddp", "single #2"));
}

TEST_F(CompareConfigTest, TwoOfOnePluginAreToldApartByTheirFields) {
  const auto loaded = Load(absl::StrCat(
      kShared, kDdp,
      "strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 } }\n"
      "processes: 1"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(SlotLabels(loaded->config.strategy()),
              ElementsAre("ddp", "ddp { bucket_cap_mib: 5 }"));
}

}  // namespace
}  // namespace capstan
