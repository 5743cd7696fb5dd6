// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom/collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/darkroom/history_origin.h"

namespace capstan::darkroom {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

EnvironmentSpec Goals() { return Darkroom(Variant::kGoals, {}).spec(); }

class CollectorTest : public testing::Test {
 protected:
  CollectorTest() {
    folder_ = fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    config_.set_output(folder_ / "new" / "histories.hdf5");
    config_.set_streams(4);
    config_.set_steps(600);  // two updates
    config_.set_tasks(5);
    config_.mutable_ppo()->set_n_epochs(2);
  }

  absl::Status Collect(const CollectProgress& progress =
                           [](double, absl::string_view) { return true; }) {
    auto collector = DarkroomCollector::Create(config_);
    if (!collector.ok()) return collector.status();
    return (*collector)->Collect(progress);
  }

  std::string Bytes() const {
    std::ifstream file(config_.output(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Expects the config to be refused, for this field.
  void ExpectRefused(const std::string& field, const std::string& words) {
    const absl::Status status = DarkroomCollector::Create(config_).status();
    EXPECT_EQ(FieldOf(status).value_or("none"), field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }

  fs::path folder_;
  Config config_;
};

TEST_F(CollectorTest, WritesHistories) {
  std::vector<double> parts;
  std::string words;
  const absl::Status status = Collect([&](double done, absl::string_view said) {
    parts.push_back(done);
    words = std::string(said);
    return true;
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::is_sorted(parts.begin(), parts.end()));
  EXPECT_EQ(parts.back(), 1.0);
  EXPECT_THAT(words, HasSubstr("5 of 5 tasks learned, mean return "));

  auto reader = HistoryReader::Open(config_.output());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_THAT((*reader)->tasks(), testing::ElementsAre(0, 1, 2, 3, 4));
  const absl::optional<HistoryOrigin>& origin = (*reader)->origin();
  ASSERT_TRUE(origin.has_value());
  EXPECT_EQ(origin->environment, "darkroom");
  EXPECT_FALSE(origin->permuted);
  EXPECT_EQ(origin->grid, 9);
  EXPECT_EQ(origin->horizon, 20);
  EXPECT_EQ(origin->seed, 42);
  for (const int task : (*reader)->tasks()) {
    const auto history = (*reader)->Read(task, Goals());
    ASSERT_TRUE(history.ok()) << history.status();
    EXPECT_EQ(history->steps, 160);
    EXPECT_EQ(history->streams, 4);
    EXPECT_EQ(std::accumulate(history->dones.begin(), history->dones.end(), 0),
              8 * 4);
  }
  // No other files remain.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "new"), {}), 1);
}

TEST_F(CollectorTest, IsTheSameOnAnyNumberOfThreads) {
  config_.set_threads(1);
  ASSERT_TRUE(Collect().ok());
  const std::string one = Bytes();
  config_.set_threads(3);
  ASSERT_TRUE(Collect().ok());
  EXPECT_TRUE(one == Bytes());
  config_.set_seed(7);
  ASSERT_TRUE(Collect().ok());
  EXPECT_FALSE(one == Bytes());
}

TEST_F(CollectorTest, ATaskDoesNotDependOnTheOthers) {
  ASSERT_TRUE(Collect().ok());
  auto all = HistoryReader::Open(config_.output());
  ASSERT_TRUE(all.ok());
  const auto wanted = (*all)->Read(1, Goals());
  config_.set_output(folder_ / "two.hdf5");
  config_.set_tasks(2);
  ASSERT_TRUE(Collect().ok());
  auto two = HistoryReader::Open(config_.output());
  ASSERT_TRUE(two.ok());
  const auto got = (*two)->Read(1, Goals());
  ASSERT_TRUE(wanted.ok() && got.ok());
  EXPECT_EQ(got->actions, wanted->actions);
}

TEST_F(CollectorTest, CanBeStopped) {
  fs::create_directories(folder_ / "new");
  std::ofstream(config_.output()) << "older";
  config_.set_steps(80000);
  const absl::Status status =
      Collect([](double, absl::string_view) { return false; });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Bytes(), "older");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "new"), {}), 1);
}

TEST_F(CollectorTest, CanNotBeWritten) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "new") << "a file";
  const absl::Status status = Collect();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("new"));
}

TEST_F(CollectorTest, PermutedActions) {
  config_.set_variant(Config::PERMUTED);
  config_.set_grid_size(5);
  config_.set_horizon(10);
  ASSERT_TRUE(Collect().ok());
  auto reader = HistoryReader::Open(config_.output());
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE((*reader)->origin().has_value());
  EXPECT_TRUE((*reader)->origin()->permuted);
  const auto environment = EnvironmentOf(*(*reader)->origin());
  ASSERT_TRUE(environment.ok()) << environment.status();
  const auto history = (*reader)->Read(4, (*environment)->spec());
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_EQ(history->states[0], 0);
  EXPECT_EQ(std::accumulate(history->dones.begin(), history->dones.end(), 0),
            16 * 4);
}

// A run takes the file that is there: its config may not say another thing.
TEST_F(CollectorTest, WhatIsThereMayNotBeAnotherThing) {
  config_.set_grid_size(5);
  config_.set_horizon(10);
  const auto check = [&] {
    const auto collector = DarkroomCollector::Create(config_);
    return collector.ok() ? (*collector)->CheckOutput() : collector.status();
  };
  EXPECT_TRUE(check().ok()) << "nothing is there";
  ASSERT_TRUE(Collect().ok());
  EXPECT_TRUE(check().ok()) << check();
  config_.set_grid_size(6);
  EXPECT_EQ(FieldOf(check()).value_or("none"), "grid_size");
  EXPECT_THAT(std::string(check().message()),
              AllOf(HasSubstr(config_.output()), HasSubstr("\"grid\":5"),
                    HasSubstr("collect --force")));
  config_.clear_grid_size();
  config_.set_horizon(11);
  EXPECT_EQ(FieldOf(check()).value_or("none"), "horizon");
  config_.clear_horizon();
  EXPECT_TRUE(check().ok()) << "the file's";
  config_.set_variant(Config::PERMUTED);
  EXPECT_EQ(FieldOf(check()).value_or("none"), "variant");
}

TEST(CollectorSettingsTest, DefaultsAreTheOriginals) {
  Config config;
  config.set_output("x");
  const auto settings = ReadSettings(config);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->tasks, 81);
  EXPECT_EQ(settings->streams, 100);
  EXPECT_EQ(settings->updates, 13);
  EXPECT_EQ(settings->ppo.steps_per_update, 80);
  EXPECT_EQ(settings->origin.seed, 42);
  EXPECT_GE(settings->threads, 1);
  config.set_variant(Config::PERMUTED);
  EXPECT_EQ(ReadSettings(config)->tasks, 120);
}

TEST_F(CollectorTest, RefusesWhatMakesNoSense) {
  const Config good = config_;
  const auto refused = [&](const std::string& field, const std::string& words,
                           const auto& change) {
    config_ = good;
    change();
    ExpectRefused(field, words);
  };
  // Anew each time: an assignment may free it.
  const auto ppo = [this] { return config_.mutable_ppo(); };
  refused("output", "must be set", [&] { config_.clear_output(); });
  refused("variant", "GOALS",
          [&] { config_.set_variant(static_cast<Config::Variant>(7)); });
  refused("grid_size", "[1, 255]", [&] { config_.set_grid_size(256); });
  refused("grid_size", "is -1", [&] { config_.set_grid_size(-1); });
  refused("horizon", "is -2", [&] { config_.set_horizon(-2); });
  refused("tasks", "[1, 81], is 82", [&] { config_.set_tasks(82); });
  refused("streams", "is -1", [&] { config_.set_streams(-1); });
  refused("streams", "memory", [&] { config_.set_streams(2000000); });
  refused("steps", "memory", [&] { config_.set_steps(1000000000000); });
  // No plugin is loaded here.
  refused("environment", "there is no plugin \"acme.maze\"", [&] {
    config_.mutable_environment()->set_type_url("plugin/acme.maze.Config");
  });
  refused("grid_size", "is of a darkroom", [&] {
    config_.mutable_environment()->set_type_url("plugin/acme.maze.Config");
    config_.set_grid_size(9);
  });
  refused("threads", "is -1", [&] { config_.set_threads(-1); });
  refused("ppo.n_steps", "is -1", [&] { ppo()->set_n_steps(-1); });
  refused("ppo.batch_size", "only 320", [&] { ppo()->set_batch_size(321); });
  refused("ppo.n_epochs", "is -1", [&] { ppo()->set_n_epochs(-1); });
  refused("ppo.learning_rate", "is -1", [&] { ppo()->set_learning_rate(-1); });
  refused("ppo.learning_rate", "is nan",
          [&] { ppo()->set_learning_rate(std::nan("")); });
  refused("ppo.gamma", "[0, 1]", [&] { ppo()->set_gamma(1.5); });
  refused("ppo.gae_lambda", "[0, 1]", [&] { ppo()->set_gae_lambda(-0.1); });
  refused("ppo.clip_range", "[0, 1]", [&] { ppo()->set_clip_range(2); });
  refused("ppo.vf_coef", "is -1", [&] { ppo()->set_vf_coef(-1); });
  refused("ppo.ent_coef", "is nan", [&] { ppo()->set_ent_coef(std::nan("")); });
  refused("ppo.max_grad_norm", "is -1", [&] { ppo()->set_max_grad_norm(-1); });
}

}  // namespace
}  // namespace capstan::darkroom
