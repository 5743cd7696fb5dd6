// SPDX-License-Identifier: Apache-2.0
//
// train.skip_bad_samples: samples that can't be read are passed over, named and
// counted, the same for any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"
#include "tests/train/toy_wrappers.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A run of 12 samples a step over 40, of which some can't be read: by a status
// or, if odd, an exception.
ToyRun ToySteps(int64_t steps, int64_t most, std::set<int64_t> bad,
                std::set<int64_t> bad_in_evaluation = {}) {
  ToyRun run;
  run.micro_batch = 1;
  run.train = absl::StrCat("max_steps: ", steps, " skip_bad_samples: ", most,
                           " save_every: 1 resume: AUTO");
  if (!bad_in_evaluation.empty()) run.train += " eval_every: 2";
  const auto torn = [](const std::set<int64_t>& samples) {
    return [samples](int64_t sample) {
      if (samples.count(sample) == 0) return absl::OkStatus();
      const std::string words = absl::StrCat("row ", sample, " is torn");
      if (sample % 2 == 1) throw std::runtime_error(words);
      return absl::DataLossError(words);
    };
  };
  run.change = [=](int, RunParts* parts) {
    parts->train_data =
        std::make_unique<WrappedData>(std::move(parts->train_data), torn(bad));
    if (parts->eval_data == nullptr) return;
    parts->eval_data = std::make_unique<WrappedData>(
        std::move(parts->eval_data), torn(bad_in_evaluation));
  };
  return run;
}

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + 1)) {
    ++count;
  }
  return count;
}

void ExpectNear(const std::vector<double>& got,
                const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-6);
}

TEST(BadSamplesTest, TheSameForAnyNumberOfRanks) {
  // Two neighbours, the first and the last; seven steps are two epochs.
  const std::set<int64_t> bad = {0, 14, 15, 39};
  const Metrics one = ReadMetrics(MustTrain(ToySteps(7, 4, bad)));
  for (const int ranks : {1, 2, 4}) {
    for (const int64_t micro : {1, 3}) {
      ToyRun run = ToySteps(7, 4, bad);
      run.ranks = ranks;
      run.micro_batch = micro;
      const std::string folder = MustTrain(run);
      ExpectNear(ReadMetrics(folder).losses(), one.losses());
      const std::string said = Printed(folder);
      for (const int64_t sample : bad) {
        // Once, though it comes in each epoch.
        EXPECT_EQ(Count(said, absl::StrCat("sample ", sample,
                                           " of train_data can't be read (row ",
                                           sample, " is torn)")),
                  1)
            << said;
      }
      const nlohmann::json state =
          ReadJson(folder + "/checkpoints/step-00000007/manifest.json");
      EXPECT_EQ(state["train_state"]["bad_samples"],
                (std::vector<int64_t>{0, 14, 15, 39}));
    }
  }
}

TEST(BadSamplesTest, OneTooManyEndsTheRun) {
  for (const int ranks : {1, 2, 4}) {
    // Sample 30 is in step 3.
    ToyRun run = ToySteps(7, 2, {1, 16, 30});
    run.ranks = ranks;
    const std::string said = MustFail(&run);
    EXPECT_EQ(Count(said, "ERROR"), 1) << said;
    EXPECT_THAT(said, AllOf(HasSubstr("sample 30"), HasSubstr("row 30 is torn"),
                            HasSubstr("train.skip_bad_samples")));
    EXPECT_EQ(CheckpointSteps(run.output_dir), (std::vector<int64_t>{1, 2}));
  }
}

TEST(BadSamplesTest, TheCountSurvivesAResume) {
  ToyRun run = ToySteps(2, 2, {1, 16, 30});
  run.ranks = 2;
  run.output_dir = MustTrain(run);
  run.train += " max_steps: 7";
  run.train.replace(run.train.find("max_steps: 2"), 12, "");
  EXPECT_THAT(MustFail(&run),
              AllOf(HasSubstr("sample 30"), HasSubstr("1, 16")));
}

TEST(BadSamplesTest, EvaluationDataToo) {
  for (const int ranks : {1, 2}) {
    ToyRun run = ToySteps(4, 3, {5}, {6, 7});
    run.ranks = ranks;
    const std::string folder = MustTrain(run);
    EXPECT_EQ(ReadMetrics(folder).evals.size(), 2u);
    EXPECT_EQ(Count(Printed(folder), "of eval_data can't be read"), 2);
    // All data together.
    run = ToySteps(4, 2, {5}, {6, 7});
    run.ranks = ranks;
    EXPECT_THAT(MustFail(&run), AllOf(HasSubstr("sample 7 of eval_data"),
                                      HasSubstr("row 7 is torn")));
  }
}

TEST(BadSamplesTest, NotAskedForTheFirstEndsTheRun) {
  ToyRun run = ToySteps(7, 0, {16});
  run.ranks = 2;
  EXPECT_THAT(MustFail(&run), AllOf(HasSubstr("row 16 is torn"),
                                    Not(HasSubstr("skip_bad_samples"))));
}

}  // namespace
}  // namespace capstan
