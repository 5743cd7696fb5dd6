// SPDX-License-Identifier: Apache-2.0
//
// Runs slowed by one cause each, as their folders tell of it. Times are those
// of a step of 100 ms that is slowed by the cause.
#include "desk/why_slow/causes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "desk/why_slow/page.h"
#include "desk/why_slow/speed_record.h"

namespace capstan::why_slow {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

constexpr int kLines = 10;
constexpr double kSteps = 10.0;  // of a line

// A line of a rank that nothing slows.
Json GoodLine() {
  return {{"step", 10},
          {"steps", kSteps},
          {"step_seconds", 1.0},
          {"data", 0.001},
          {"forward", 0.3},
          {"backward", 0.6},
          {"optimizer", 0.06},
          {"exposed", 0.03},
          {"rest", 0.009},
          {"outside", 0.001},
          {"actions", Json::object()},
          {"off_core", 0.01},
          {"runqueue_seconds", 0.01},
          {"cpu_seconds", 0.97},
          {"steal_seconds", 0.0},
          {"iowait_seconds", 0.0},
          {"major_faults", 0},
          {"read_bytes", 0}};
}

Json Facts(int rank, int world_size) {
  return {{"rank", rank},    {"world_size", world_size}, {"host", "a"},
          {"device", "CPU"}, {"cores", world_size},      {"threads", 1},
          {"first_step", 0}};
}

// Adds `seconds` to a part of a line's steps.
void AddTo(const std::string& part, double seconds, Json* line) {
  (*line)[part] = (*line)[part].get<double>() + seconds;
  (*line)["step_seconds"] = (*line)["step_seconds"].get<double>() + seconds;
}

class CausesTest : public ::testing::Test {
 protected:
  CausesTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/ranks");
    // 4096 tokens a step and rank.
    std::ofstream(folder_ + "/metrics.jsonl")
        << "{\"step\": 1, \"loss\": 2.5, \"tokens_per_second\": 81920, "
           "\"step_seconds\": 0.1, \"bytes_sent\": 1000000}\n";
  }

  // Writes the ranks' files, with lines changed by `change`, and returns what
  // is found.
  using Change = std::function<void(int rank, int line, Json* json)>;
  std::vector<Cause> Find(const Change& change, int ranks = 2,
                          const std::function<void(int, Json*)>& facts = {}) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::ofstream file(
          absl::StrFormat("%s/ranks/rank-%05d.jsonl", folder_, rank));
      Json first = Facts(rank, ranks);
      if (facts) facts(rank, &first);
      file << first << "\n";
      for (int line = 0; line < kLines; ++line) {
        Json json = GoodLine();
        change(rank, line, &json);
        file << json << "\n";
      }
      // What a killed process leaves.
      file << "{\"step\": 1";
    }
    const absl::StatusOr<SpeedRecord> run = ReadSpeedRecord(folder_);
    EXPECT_TRUE(run.ok()) << run.status();
    if (!run.ok()) return {};
    record_ = *run;
    record_.settings = settings_;
    summary_ = Summarize(record_);
    return FindCauses(record_, summary_);
  }

  // The only cause, and the seconds of a step that it costs.
  static void ExpectOnly(const std::vector<Cause>& causes,
                         const std::string& name, double gain,
                         const std::string& words) {
    ASSERT_EQ(causes.size(), 1);
    EXPECT_EQ(causes[0].name, name);
    EXPECT_NEAR(causes[0].gain, gain, 0.1 * gain);
    EXPECT_THAT(causes[0].text + " -> " + causes[0].advice, HasSubstr(words));
  }

  const std::string folder_ =
      ::testing::TempDir() + "/" +
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
  Settings settings_;
  SpeedRecord record_;
  Summary summary_;
};

TEST_F(CausesTest, NothingOfAGoodRun) {
  EXPECT_THAT(Find([](int, int, Json*) {}), testing::SizeIs(1));
  // Only the communication, 3 %, which is what it is.
  EXPECT_THAT(Find([](int, int, Json*) {}, 1), IsEmpty());
  const std::string page = PageText(record_, summary_, {}, 80);
  EXPECT_THAT(page, HasSubstr("100 steps, 100 ms each"));
  EXPECT_THAT(page, HasSubstr("nothing but its work"));
}

TEST_F(CausesTest, LinesOfNoStepAreLeftOut) {
  Find([](int, int line, Json* json) {
    if (line == 0) (*json)["step"] = -5;
    if (line == 1) (*json)["step"] = 1e300;
  });
  ASSERT_FALSE(record_.ranks.empty());
  EXPECT_EQ(record_.ranks[0].lines, kLines - 2);
}

TEST_F(CausesTest, ASlowDisk) {
  const auto slow = [](int, int, Json* json) {
    AddTo("data", 0.5, json);
    (*json)["read_bytes"] = 5000000;
    (*json)["iowait_seconds"] = 0.4;
  };
  ExpectOnly(Find(slow, 1), "data", 0.05, "a faster disk");
}

TEST_F(CausesTest, ASlowReader) {
  ExpectOnly(Find([](int, int, Json* json) { AddTo("data", 0.5, json); }, 1),
             "data", 0.05, "tokenize once");
}

TEST_F(CausesTest, AColdCache) {
  const auto cold = [](int, int line, Json* json) {
    if (line >= 3) return;
    AddTo("data", 2.0, json);
    (*json)["read_bytes"] = 50000000;
  };
  // 6 s over 100 steps.
  ExpectOnly(Find(cold, 1), "cold cache", 0.06, "143 MiB read");
}

TEST_F(CausesTest, AColdStart) {
  const auto cold = [](int, Json* facts) {
    (*facts)["ready_seconds"] = 9.0;
    (*facts)["ready_cpu_seconds"] = 1.0;
    (*facts)["ready_read_bytes"] = 250000000;
  };
  ExpectOnly(Find([](int, int, Json*) {}, 1, cold), "cold cache", 0.08,
             "waited 8.00 s, while 238 MiB");
}

TEST_F(CausesTest, ALateRank) {
  const auto late = [](int rank, int, Json* json) {
    AddTo(rank == 1 ? "backward" : "exposed", 0.6, json);
  };
  const std::vector<Cause> causes = Find(late);
  ASSERT_FALSE(causes.empty());
  EXPECT_EQ(causes[0].name, "late rank");
  EXPECT_NEAR(causes[0].gain, 0.06, 0.003);
  EXPECT_THAT(causes[0].text, HasSubstr("rank 1 on a"));
  EXPECT_THAT(causes[0].text, HasSubstr("backward, 60 ms"));
}

TEST_F(CausesTest, ARankWhoseCoreOthersTake) {
  const auto crowded = [](int rank, int, Json* json) {
    AddTo(rank == 1 ? "backward" : "exposed", 0.6, json);
    if (rank != 1) return;
    (*json)["off_core"] = 0.6;
    (*json)["runqueue_seconds"] = 0.6;
  };
  const std::vector<Cause> causes = Find(crowded);
  ASSERT_FALSE(causes.empty());
  EXPECT_EQ(causes[0].name, "late rank");
  EXPECT_THAT(causes[0].text, HasSubstr("taken by others"));
}

TEST_F(CausesTest, ARankThatIsStoppedNowAndThen) {
  const auto stopped = [](int rank, int, Json* json) {
    AddTo(rank == 0 ? "forward" : "exposed", 0.6, json);
    if (rank == 0) (*json)["off_core"] = 0.6;
  };
  const std::vector<Cause> causes = Find(stopped);
  ASSERT_FALSE(causes.empty());
  EXPECT_EQ(causes[0].name, "late rank");
  EXPECT_THAT(causes[0].text, HasSubstr("rank 0"));
  EXPECT_THAT(causes[0].text, HasSubstr("it was stopped"));
}

TEST_F(CausesTest, ALateRankBecauseOfItsDisk) {
  const auto late = [](int rank, int, Json* json) {
    AddTo(rank == 1 ? "data" : "exposed", 0.6, json);
  };
  const std::vector<Cause> causes = Find(late);
  ASSERT_FALSE(causes.empty());
  EXPECT_EQ(causes[0].name, "late rank");
  EXPECT_THAT(causes[0].text, HasSubstr("waits for its data"));
}

TEST_F(CausesTest, ASlowLink) {
  const auto slow = [](int, int, Json* json) { AddTo("exposed", 1.0, json); };
  ExpectOnly(Find(slow, 2,
                  [](int rank, Json* facts) {
                    (*facts)["host"] = absl::StrCat("h", rank);
                  }),
             "communication", 0.103, "between hosts");
}

TEST_F(CausesTest, TooManyThreads) {
  // Two cores could do in 100 ms what now takes 200.
  const auto crowded = [](int, int, Json* json) {
    AddTo("backward", 1.0, json);
    (*json)["off_core"] = 1.5;
    (*json)["runqueue_seconds"] = 1.0;
    (*json)["cpu_seconds"] = 2.0;
  };
  const auto threads = [](int, Json* facts) {
    (*facts)["threads"] = 8;
    (*facts)["cores"] = 2;
  };
  ExpectOnly(Find(crowded, 1, threads), "too many threads", 0.097,
             "8 threads compute on 2 cores");
  EXPECT_THAT(Find(crowded, 1, threads)[0].advice,
              HasSubstr("OMP_NUM_THREADS=2"));
}

TEST_F(CausesTest, Steal) {
  // Half of what the ranks would have had.
  const auto stolen = [](int, int, Json* json) {
    AddTo("backward", 0.96, json);
    (*json)["steal_seconds"] = 0.97;
  };
  ExpectOnly(Find(stolen, 1), "steal", 0.096, "hypervisor");
}

// Nearly all of a slow step was a wait behind processes of this host.
TEST_F(CausesTest, NoMoreThanWasStolenIsGained) {
  const auto crowded = [](int, int, Json* json) {
    AddTo("backward", 80.0, json);
    (*json)["runqueue_seconds"] = 78.0;
    (*json)["off_core"] = 78.0;
    (*json)["cpu_seconds"] = 1.0;
    (*json)["steal_seconds"] = 2.0;
  };
  const std::vector<Cause> causes = Find(crowded, 1);
  ASSERT_EQ(causes.size(), 2);
  EXPECT_EQ(causes[0].name, "host");
  // One rank on a core can't be given fewer.
  EXPECT_THAT(causes[0].advice, testing::Not(HasSubstr("ranks")));
  EXPECT_EQ(causes[1].name, "steal");
  EXPECT_NEAR(causes[1].gain, 0.2, 1e-9);
}

TEST_F(CausesTest, OtherProcesses) {
  const auto busy = [](int, int, Json* json) {
    AddTo("forward", 0.5, json);
    (*json)["off_core"] = 0.5;
    (*json)["runqueue_seconds"] = 0.5;
  };
  ExpectOnly(Find(busy, 1), "host", 0.05, "other processes run on it");
}

TEST_F(CausesTest, EvaluatedTooOften) {
  settings_.eval_every = 10;
  const auto often = [](int, int, Json* json) {
    (*json)["actions"] = {{"evaluation", 0.9}, {"sampling", 0.1}};
    (*json)["outside"] = 1.001;
  };
  // 0.9 s beside 1.1: a twentieth of it is left. The samples take 5 %, which is
  // fair.
  ExpectOnly(Find(often, 1), "evaluation", 0.0855, "train.eval_every: 200");
}

TEST_F(CausesTest, SampledTooOften) {
  settings_.eval_every = 1;
  const auto often = [](int, int, Json* json) {
    (*json)["actions"] = {{"evaluation", 0.01}, {"sampling", 0.99}};
    (*json)["outside"] = 1.001;
  };
  const std::vector<Cause> causes = Find(often, 1);
  ExpectOnly(causes, "sampling", 0.094, "train.sample_prompts");
  EXPECT_THAT(causes[0].text, HasSubstr("done after each"));
}

// No setting makes it rarer.
TEST_F(CausesTest, EvaluatedOnceAtTheEnd) {
  settings_.eval_every = 1000;
  const auto once = [](int, int line, Json* json) {
    if (line + 1 < kLines) return;
    (*json)["actions"] = {{"evaluation", 9.5}, {"sampling", 0.5}};
    (*json)["outside"] = 10.001;
  };
  EXPECT_THAT(Find(once, 1), IsEmpty());
  EXPECT_THAT(PageText(record_, summary_, {}, 80),
              HasSubstr("evaluation: 10.00 s once, at the end"));
  // A resumed run that has come by a step at which it's due.
  const auto resumed = [](int, Json* facts) { (*facts)["first_step"] = 950; };
  EXPECT_THAT(Find(once, 1, resumed), testing::SizeIs(1));
}

TEST_F(CausesTest, SavedTooOften) {
  settings_.save_every = 1;
  settings_.saves_in_foreground = true;
  const auto often = [](int, int, Json* json) {
    (*json)["actions"] = {{"saving", 3.0}};
    (*json)["outside"] = 3.001;
  };
  ExpectOnly(Find(often, 1), "saving", 0.3, "saving: BACKGROUND");
}

TEST_F(CausesTest, AnOddShape) {
  settings_.widths = {{"hidden_size", 136}, {"vocab_size", 256}};
  const std::vector<Cause> causes = Find([](int, int, Json*) {}, 1);
  ASSERT_EQ(causes.size(), 1);
  EXPECT_EQ(causes[0].name, "odd shape");
  EXPECT_THAT(causes[0].text, HasSubstr("hidden_size 136 costs what 144 does"));
  EXPECT_THAT(causes[0].advice, HasSubstr("hidden_size 128 or 144"));
  EXPECT_NEAR(causes[0].gain, 0.145 * 0.09, 0.001);
}

TEST_F(CausesTest, SmallBatches) {
  settings_.micro_batch_size = 1;
  std::ofstream(folder_ + "/metrics.jsonl")
      << "{\"step\": 1, \"loss\": 2.5, \"tokens_per_second\": 640, "
         "\"step_seconds\": 0.1, \"bytes_sent\": 0}\n";
  const auto small = [](int, int, Json* json) {
    AddTo("optimizer", 1.0, json);
  };
  const std::vector<Cause> causes = Find(small, 1);
  ASSERT_EQ(causes.size(), 1);
  EXPECT_EQ(causes[0].name, "small batch");
  EXPECT_THAT(causes[0].text, HasSubstr("only 64 tokens"));
  // Nearly all of the update, and a sixth of the products.
  EXPECT_NEAR(causes[0].gain, 0.099 + 0.013, 0.005);
}

// 16 micro-batches of 32 tokens a step.
TEST_F(CausesTest, SmallMicroBatches) {
  settings_.micro_batch_size = 1;
  settings_.global_batch_size = 16;
  std::ofstream(folder_ + "/metrics.jsonl")
      << "{\"step\": 1, \"loss\": 2.5, \"tokens_per_second\": 5120, "
         "\"step_seconds\": 0.1, \"bytes_sent\": 0}\n";
  const std::vector<Cause> causes = Find([](int, int, Json*) {}, 1);
  ASSERT_EQ(causes.size(), 1);
  EXPECT_EQ(causes[0].name, "small batch");
  EXPECT_THAT(causes[0].text, HasSubstr("only 32 tokens at once, 16 times"));
  EXPECT_THAT(causes[0].advice, HasSubstr("micro_batch_size: 20 instead of 1"));
  // A quarter of the products; a step's other work is done for 20 instead of 16
  // micro-batches.
  EXPECT_NEAR(
      causes[0].gain,
      0.09 * (1.0 - (1.0 + 12.0 / 640) / 1.375) + 0.01 * (1.0 - 16.0 / 20),
      0.001);
  // Enough at once, by less accumulation.
  settings_.micro_batch_size = 2;
  settings_.global_batch_size = 1024;
  std::ofstream(folder_ + "/metrics.jsonl")
      << "{\"step\": 1, \"loss\": 2.5, \"tokens_per_second\": 163840, "
         "\"step_seconds\": 0.1, \"bytes_sent\": 0}\n";
  const std::vector<Cause> fewer = Find([](int, int, Json*) {}, 1);
  ASSERT_EQ(fewer.size(), 1);
  EXPECT_THAT(fewer[0].advice, HasSubstr("accumulate over fewer"));
}

// The batch was smaller before, and so were the messages.
TEST_F(CausesTest, MetricsAreThoseOfTheNewestProcess) {
  std::ofstream(folder_ + "/metrics.jsonl", std::ios::app)
      << "{\"step\": 2, \"loss\": 2.5, \"tokens_per_second\": 40960, "
         "\"step_seconds\": 0.2, \"bytes_sent\": 3000}\n";
  Find([](int, int, Json*) {}, 1,
       [](int, Json* facts) { (*facts)["first_step"] = 1; });
  EXPECT_EQ(record_.tokens, 8192.0);
  EXPECT_EQ(record_.bytes_sent, 3000.0);
}

TEST_F(CausesTest, SumsOfLines) {
  Find([](int, int line, Json* json) { AddTo("data", line, json); }, 1);
  const RankRecord& rank = record_.ranks[0];
  EXPECT_EQ(rank.lines, kLines);
  EXPECT_NEAR(rank.first.data, 0.001, 1e-9);
  EXPECT_NEAR(rank.early.data, 10.004, 1e-9);  // lines 1 to 4
  EXPECT_NEAR(rank.later.data, 35.005, 1e-9);
  EXPECT_NEAR(rank.all.data, 45.01, 1e-9);
}

TEST_F(CausesTest, ARestartedRunIsJudgedByItsNewestProcess) {
  Find([](int, int, Json* json) { AddTo("data", 5.0, json); }, 1);
  std::ofstream file(folder_ + "/ranks/rank-00000.jsonl", std::ios::app);
  file << "\n" << Facts(0, 1) << "\n" << GoodLine() << "\n";
  file.close();
  const absl::StatusOr<SpeedRecord> run = ReadSpeedRecord(folder_);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(FindCauses(*run, Summarize(*run)), IsEmpty());
}

TEST_F(CausesTest, AFolderWithoutARecord) {
  EXPECT_THAT(ReadSpeedRecord(folder_).status().message(),
              HasSubstr("/ranks has no record of a step"));
  EXPECT_THAT(ReadSpeedRecord("/nowhere").status().message(),
              HasSubstr("/nowhere: no such folder"));
}

TEST_F(CausesTest, TheSameForPrograms) {
  const std::vector<Cause> causes =
      Find([](int, int, Json* json) { AddTo("data", 1.0, json); }, 1);
  const Json json = PageJson(record_, summary_, causes);
  EXPECT_NEAR(json["seconds"], 0.2, 0.001);
  EXPECT_NEAR(json["parts"]["data"], 0.1, 0.001);
  EXPECT_EQ(json["causes"][0]["name"], "data");
  EXPECT_NEAR(json["causes"][0]["share"], 0.5, 0.01);
}

}  // namespace
}  // namespace capstan::why_slow
