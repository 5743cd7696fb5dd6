// SPDX-License-Identifier: Apache-2.0
#include "datasets/darkroom/collector.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "datasets/darkroom/history_file.h"
#include "datasets/darkroom/ppo.h"
#include "plugins/sdk/plugin.h"

namespace capstan::darkroom {
namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(500);

// Threads that train the learners, one task at a time. The destructor stops and
// joins them.
class Learners {
 public:
  explicit Learners(const CollectorSettings& settings)
      : settings_(settings), results_(settings.tasks) {
    try {
      for (int i = 0; i < settings.threads; ++i) {
        threads_.emplace_back([this] { Work(); });
      }
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;  // continue with fewer
    }
  }
  ~Learners() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  // Waits for a limited time for a task's history, and moves it to *history.
  // Returns whether it came, or the error of any thread that failed.
  absl::StatusOr<bool> Take(int task, History* history) {
    std::unique_lock<std::mutex> lock(mutex_);
    Result& result = results_[task];
    changed_.wait_for(lock, kProgressInterval,
                      [&] { return result.done || !status_.ok(); });
    CAPSTAN_RETURN_IF_ERROR(status_);
    if (result.done) *history = std::move(result.history);
    return result.done;
  }

  // Progress in [0, 1] and as text.
  std::pair<double, std::string> Progress() {
    const std::lock_guard<std::mutex> lock(mutex_);
    int tasks = 0;
    double reached = 0, possible = 0;
    for (const Result& result : results_) {
      if (!result.done) continue;
      ++tasks;
      reached += result.mean_return;
      possible += result.optimum;
    }
    std::string words =
        absl::StrCat(tasks, " of ", results_.size(), " tasks learned");
    if (tasks > 0) {
      absl::StrAppendFormat(&words, ", mean return %.1f of %.1f",
                            reached / tasks, possible / tasks);
    }
    return {static_cast<double>(updates_) /
                (static_cast<double>(results_.size()) * settings_.updates),
            words};
  }

 private:
  struct Result {
    bool done = false;
    History history;
    double mean_return = 0;
    int optimum = 0;
  };

  void Work() {
    try {
      for (int task; !stop_ && (task = next_task_++) < settings_.tasks;) {
        Learn(task);
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      status_ = CurrentExceptionToStatus();
    }
    changed_.notify_all();
  }

  void Learn(int index) {
    const Task task = MakeTask(settings_.variant, settings_.room, index);
    const auto learner = std::make_unique<PpoLearner>(
        settings_.ppo, settings_.room, task, settings_.streams,
        static_cast<uint64_t>(settings_.seed) + index);
    for (int64_t i = 0; i < settings_.updates; ++i, ++updates_) {
      if (stop_) return;
      learner->Update();
    }
    Result result;
    result.done = true;
    result.history = learner->history();
    result.mean_return = learner->mean_return();
    result.optimum = OptimalReturn(settings_.room, task);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      results_[index] = std::move(result);
    }
    changed_.notify_all();
  }

  const CollectorSettings& settings_;
  std::atomic<int> next_task_{0};
  std::atomic<int64_t> updates_{0};  // of all learners
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Result> results_;
  absl::Status status_;
  std::vector<std::thread> threads_;
};

// Calls the user's function from time to time.
class Reporter {
 public:
  explicit Reporter(const CollectProgress& progress) : progress_(progress) {}

  absl::Status Report(Learners* learners, bool last) {
    const auto now = std::chrono::steady_clock::now();
    if (!last && now < next_) return absl::OkStatus();
    next_ = now + kProgressInterval;
    const auto [done, words] = learners->Progress();
    if (progress_(done, words)) return absl::OkStatus();
    return absl::CancelledError("collecting was stopped");
  }

 private:
  const CollectProgress& progress_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace

absl::StatusOr<std::unique_ptr<DarkroomCollector>> DarkroomCollector::Create(
    const Config& config) {
  CAPSTAN_ASSIGN_OR_RETURN(CollectorSettings settings, ReadSettings(config));
  return std::unique_ptr<DarkroomCollector>(
      new DarkroomCollector(std::move(settings)));
}

absl::Status DarkroomCollector::Collect(const CollectProgress& progress) {
  const std::filesystem::path folder =
      std::filesystem::path(settings_.output).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat(folder.string(), " can't be made"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HistoryWriter> writer,
                           HistoryWriter::Create(settings_.output));
  Learners learners(settings_);
  Reporter reporter(progress);
  for (int task = 0; task < settings_.tasks; ++task) {
    History history;
    bool there = false;
    while (!there) {
      CAPSTAN_ASSIGN_OR_RETURN(there, learners.Take(task, &history));
      CAPSTAN_RETURN_IF_ERROR(reporter.Report(&learners, false));
    }
    CAPSTAN_RETURN_IF_ERROR(writer->Write(task, history));
  }
  CAPSTAN_RETURN_IF_ERROR(reporter.Report(&learners, true));
  return writer->Commit();
}

CAPSTAN_PLUGIN(Collector, DarkroomCollector, ::capstan::darkroom::Config,
               "learning histories of a darkroom, by PPO learners");

}  // namespace capstan::darkroom
