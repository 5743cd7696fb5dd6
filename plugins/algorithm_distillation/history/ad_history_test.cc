// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/history/ad_history.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/darkroom/random_history_testing.h"
#include "plugins/algorithm_distillation/history_model.h"

namespace capstan::ad_history {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kSteps = 26;
constexpr int64_t kStreams = 3;
constexpr int64_t kLength = 8;

constexpr int64_t kColumns = 6;  // of a darkroom
const darkroom::Darkroom kRooms(darkroom::Variant::kGoals, {});

using Transition = std::array<uint8_t, kColumns>;

darkroom::History HistoryOf(int task) {
  return darkroom::RandomHistory(kRooms, task, kSteps, kStreams);
}

Transition At(int task, int64_t stream, int64_t step) {
  static auto* const histories = new std::map<int, darkroom::History>;
  if (histories->count(task) == 0) histories->emplace(task, HistoryOf(task));
  const darkroom::History& h = histories->at(task);
  const int64_t i = step * kStreams + stream;
  return {h.states[2 * i], h.states[2 * i + 1],  h.actions[i],
          h.rewards[i],    h.next_states[2 * i], h.next_states[2 * i + 1]};
}

// A file of `tasks` tasks, which doesn't say what it is.
std::string File(int tasks) {
  const std::string path =
      ::testing::TempDir() + "/histories_" + std::to_string(tasks) + ".hdf5";
  auto writer = darkroom::HistoryWriter::Create(path);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (int task = 0; task < tasks; ++task) {
    EXPECT_TRUE((*writer)->Write(task, HistoryOf(task % 81)).ok());
  }
  EXPECT_TRUE((*writer)->Commit().ok());
  return path;
}

Config Small(Config::Mode mode) {
  static const std::string* const path = new std::string(File(81));
  Config config;
  config.set_path(*path);
  config.set_mode(mode);
  config.set_steps(kSteps);
  if (mode == Config::PLAIN) {
    config.set_n_transit(kLength);
  } else {
    config.set_region(kLength);
  }
  return config;
}

std::unique_ptr<AdHistory> MustCreate(const Config& config) {
  auto reader = AdHistory::Create(config);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

// A row of a batch as text: "S" and "E" for markers, (transition), <query>,
// "." for padding.
std::string Row(const Batch& batch, int64_t row) {
  const at::Tensor kinds = batch.at("kinds")[row];
  const at::Tensor transitions = batch.at("transitions")[row];
  std::string text;
  for (int64_t t = 0; t < kinds.size(0); ++t) {
    const auto number = [&](int column) {
      return std::to_string(transitions[t][column].item<int>());
    };
    switch (static_cast<HistoryToken>(kinds[t].item<int>())) {
      case HistoryToken::kStart:
        text += "S";
        break;
      case HistoryToken::kEnd:
        text += "E";
        break;
      case HistoryToken::kPadding:
        text += ".";
        break;
      case HistoryToken::kQuery:
        text += "<" + number(0) + number(1) + ">";
        break;
      case HistoryToken::kTransition:
        text += "(";
        for (int c = 0; c < kColumns; ++c) text += number(c);
        text += ")";
        break;
    }
  }
  return text;
}

std::string Transitions(int task, int64_t stream, int64_t begin, int64_t end) {
  std::string text;
  for (int64_t step = begin; step < end; ++step) {
    text += "(";
    for (const uint8_t x : At(task, stream, step)) text += std::to_string(x);
    text += ")";
  }
  return text;
}

std::string Query(int task, int64_t stream, int64_t step) {
  const Transition t = At(task, stream, step);
  return "<" + std::to_string(t[0]) + std::to_string(t[1]) + ">";
}

std::vector<int64_t> All(const DatasetReader& reader) {
  std::vector<int64_t> indices(reader.size());
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

// The original's counts, from the numbers alone.
TEST(SampleLayoutTest, CountsAreTheOriginals) {
  HistoryForm form;
  form.environment = std::make_shared<const darkroom::Darkroom>(kRooms);
  form.length = 80;
  EXPECT_EQ(SampleLayout(form, false, 1000, 7300).size(), 921 * 7300);
  EXPECT_EQ(SampleLayout(form, true, 1000, 7300).size(), 1000 * 7300);
  form.compressed = true;
  EXPECT_EQ(SampleLayout(form, false, 1000, 7300).size(), 7008000);
  EXPECT_EQ(SampleLayout(form, false, 1000, 8).size(), 7680);
  EXPECT_EQ(form.max_tokens(), 163);
}

TEST(AdHistoryTest, TasksAreSplitAsTheOriginals) {
  const auto train = MustCreate(Small(Config::PLAIN));
  EXPECT_EQ(train->tasks().size(), 73u);
  EXPECT_EQ(train->size(), 73 * kStreams * (kSteps - kLength + 1));
  const auto test = *train->Validation();
  ASSERT_NE(test, nullptr);
  EXPECT_EQ(test->size(), 8 * (kSteps - kLength + 1));
  const auto* source = dynamic_cast<const HistorySource*>(test.get());
  ASSERT_NE(source, nullptr);
  EXPECT_THAT(source->tasks(), ElementsAre(38, 51, 62, 65, 33, 5, 53, 49));
  EXPECT_EQ(*test->Validation(), nullptr);
}

// As `collect.tasks` makes them: what is held out stays so.
TEST(AdHistoryTest, AFileMayHaveSomeOfTheTasks) {
  Config config = Small(Config::PLAIN);
  EXPECT_THAT(MustCreate(config)->notes(), IsEmpty());
  config.set_path(File(20));
  const auto train = MustCreate(config);
  EXPECT_EQ(train->tasks().size(), 19u);
  EXPECT_THAT(train->tasks(), Not(Contains(5)));
  EXPECT_EQ(train->size(), 19 * kStreams * (kSteps - kLength + 1));
  EXPECT_THAT(train->notes(),
              ElementsAre(HasSubstr("20 of the 81 tasks: 19 are trained on, 1 "
                                    "of the 8 that are held out")));
  const auto test = *train->Validation();
  ASSERT_NE(test, nullptr);
  EXPECT_EQ(test->size(), kSteps - kLength + 1);
  const auto* source = dynamic_cast<const HistorySource*>(test.get());
  EXPECT_THAT(source->tasks(), ElementsAre(38, 51, 62, 65, 33, 5, 53, 49));
  Batch batch;
  ASSERT_TRUE(test->Read({0}, &batch).ok());
  EXPECT_EQ(Row(batch, 0),
            Transitions(5, 0, 0, kLength - 1) + Query(5, 0, kLength - 1));

  config.set_path(File(5));
  const auto few = MustCreate(config);
  EXPECT_EQ(*few->Validation(), nullptr);
  EXPECT_THAT(few->notes(),
              ElementsAre(HasSubstr("0 of the 8 that are held out can be "
                                    "evaluated on (5, 33, 38, ")));
}

TEST(AdHistoryTest, ShortHistoriesAreReadWhole) {
  Config config = Small(Config::PLAIN);
  config.clear_steps();  // of 1000
  EXPECT_EQ(MustCreate(config)->size(),
            MustCreate(Small(Config::PLAIN))->size());
}

TEST(AdHistoryTest, PlainIsTheTransitionsBeforeAStep) {
  const auto reader = MustCreate(Small(Config::PLAIN));
  Batch batch;
  ASSERT_TRUE(reader->Read(All(*reader), &batch).ok());
  EXPECT_EQ(batch.count("token_type"), 0u);
  int64_t index = 0;
  for (const int task : reader->tasks()) {
    for (int64_t stream = 0; stream < kStreams; ++stream) {
      for (int64_t offset = 0; offset + kLength <= kSteps; ++offset, ++index) {
        const int64_t step = offset + kLength - 1;
        ASSERT_EQ(Row(batch, index), Transitions(task, stream, offset, step) +
                                         Query(task, stream, step));
        ASSERT_EQ(batch.at("action")[index].item<int>(),
                  At(task, stream, step)[2]);
        ASSERT_EQ(batch.at("lengths")[index].item<int>(), kLength);
      }
    }
  }
  EXPECT_EQ(index, reader->size());
}

TEST(AdHistoryTest, ShortContextsBeginWithNothing) {
  Config config = Small(Config::PLAIN);
  config.set_short_contexts(true);
  const auto reader = MustCreate(config);
  EXPECT_EQ(reader->size(), 73 * kStreams * kSteps);
  const int task = reader->tasks()[0];
  Batch batch;
  ASSERT_TRUE(reader->Read({0, 2, 9}, &batch).ok());
  EXPECT_EQ(Row(batch, 0), Query(task, 0, 0) + ".......");
  EXPECT_EQ(Row(batch, 1),
            Transitions(task, 0, 0, 2) + Query(task, 0, 2) + ".....");
  EXPECT_EQ(Row(batch, 2), Transitions(task, 0, 2, 9) + Query(task, 0, 9));
  EXPECT_TRUE(batch.at("lengths").equal(at::tensor({1, 3, 8}, at::kLong)));
}

// At each step of a region: the whole previous region, and this one so far.
TEST(AdHistoryTest, CompressedIsTwoRegions) {
  Config config = Small(Config::COMPRESSED);
  config.set_split(Config::TEST);
  config.set_streams(2);
  const auto reader = MustCreate(config);
  EXPECT_EQ(reader->size(), 8 * 2 * (kSteps / kLength) * kLength);
  int64_t index = 0;
  for (const int task : reader->tasks()) {
    for (int64_t stream = 0; stream < 2; ++stream) {
      for (int64_t step = 0; step < 3 * kLength; ++step, ++index) {
        const int64_t begin = step / kLength * kLength;
        std::string want;
        if (begin > 0) {
          want = "S" + Transitions(task, stream, begin - kLength, begin) + "E";
        }
        want += "S" + Transitions(task, stream, begin, step) +
                Query(task, stream, step);
        Batch batch;
        ASSERT_TRUE(reader->Read({index}, &batch).ok());
        ASSERT_EQ(Row(batch, 0), want);
        ASSERT_EQ(batch.at("lengths").item<int>(), batch.at("kinds").size(1));
        ASSERT_EQ(batch.at("token_type").item<int>(),
                  step % kLength == kLength - 1 ? 2 : 0);
        // Also at a region's last step, where the original has none.
        ASSERT_EQ(batch.at("action").item<int>(), At(task, stream, step)[2]);
      }
    }
  }
}

TEST(AdHistoryTest, TheLastActionMayBeLeftOut) {
  Config config = Small(Config::COMPRESSED);
  config.set_skip_last_action(true);
  const auto reader = MustCreate(config);
  EXPECT_FALSE(reader->history_form().last_action);
  Batch batch;
  ASSERT_TRUE(reader->Read(All(*reader), &batch).ok());
  const at::Tensor ends = batch.at("token_type").eq(2);
  EXPECT_EQ(ends.sum().item<int64_t>(), 73 * kStreams * 3);
  EXPECT_TRUE(batch.at("action").eq(-100).equal(ends));
}

TEST(AdHistoryTest, AUsedBatchIsReadAnew) {
  const auto reader = MustCreate(Small(Config::COMPRESSED));
  Batch fresh, used;
  ASSERT_TRUE(reader->Read({23, 1, 8}, &used).ok());
  ASSERT_TRUE(reader->Read({23, 0, 2}, &used).ok());
  ASSERT_TRUE(reader->Read({23, 0, 2}, &fresh).ok());
  ASSERT_EQ(used.size(), fresh.size());
  for (const auto& [name, tensor] : fresh) {
    EXPECT_TRUE(used.at(name).equal(tensor)) << name;
  }
  EXPECT_EQ(reader->Read({reader->size()}, &used).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_FALSE(reader->Read({-1}, &used).ok());
}

void ExpectFieldError(const Config& config, const std::string& field,
                      const std::string& words) {
  const absl::Status status = AdHistory::Create(config).status();
  EXPECT_EQ(FieldOf(status), field) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(AdHistoryTest, WhatIsWrongIsSaid) {
  Config config;
  ExpectFieldError(config, "path", "is not set");
  config.set_path("/nowhere/histories.hdf5");
  ExpectFieldError(config, "path", "/nowhere/histories.hdf5");
  config = Small(Config::PLAIN);
  config.set_path(File(5));  // none of those that are held out
  config.set_split(Config::TEST);
  ExpectFieldError(config, "path",
                   "5 tasks (0, 1, 2, 3, 4), but of none of "
                   "those that are wanted: 5, 33, 38, 49, 51, 53, 62, 65");
  config.set_path(File(100));
  ExpectFieldError(
      config, "path",
      "has a group 99, but the environment has only the tasks 0 to 80");
  config = Small(Config::PLAIN);
  config.set_steps(kSteps + 1);
  ExpectFieldError(config, "steps", "is 27, but");
  config.set_steps(kLength - 1);
  ExpectFieldError(config, "steps", "a sample is of 8 (n_transit)");
  config = Small(Config::PLAIN);
  config.set_streams(kStreams + 1);
  ExpectFieldError(config, "streams", "has only 3 streams");
  config.set_streams(-1);
  ExpectFieldError(config, "streams",
                   "at least 1, or 0 for the default, is -1");
  config = Small(Config::PLAIN);
  config.set_n_transit(1);
  ExpectFieldError(config, "n_transit", "at least 2");
  config = Small(Config::PLAIN);
  config.set_region(8);
  ExpectFieldError(config, "region", "mode COMPRESSED");
  config = Small(Config::COMPRESSED);
  config.set_short_contexts(true);
  ExpectFieldError(config, "short_contexts", "mode PLAIN");
}

}  // namespace
}  // namespace capstan::ad_history
