// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom/collector.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/in_order.h"
#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/darkroom/history_origin.h"
#include "plugins/sdk/plugin.h"

namespace capstan::darkroom {
namespace {

// How far the learners are, for all threads.
class CollectReport {
 public:
  CollectReport(const CollectorSettings& settings,
                const CollectProgress& progress)
      : settings_(settings), progress_(progress) {}

  // After an update of a learner.
  void Updated() { ++updates_; }
  // After a learner's last one.
  void Learned(double mean_return, double optimum) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++tasks_;
    reached_ += mean_return;
    possible_ += optimum;
  }

  // Reports progress in [0, 1] and as text. If that says so, stops, and returns
  // CANCELLED.
  absl::Status Report() {
    std::unique_lock<std::mutex> lock(mutex_);
    std::string words =
        absl::StrCat(tasks_, " of ", settings_.tasks, " tasks learned");
    if (tasks_ > 0) {
      absl::StrAppendFormat(&words, ", mean return %.1f of %.1f",
                            reached_ / tasks_, possible_ / tasks_);
    }
    lock.unlock();
    const double all = static_cast<double>(settings_.tasks) * settings_.updates;
    if (progress_(static_cast<double>(updates_) / all, words)) {
      return absl::OkStatus();
    }
    Stop();
    return absl::CancelledError("collecting was stopped");
  }
  void Stop() { stopped_ = true; }
  // Stops with the error of a learner; the first of several is kept.
  void Fail(const absl::Status& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    error_.Update(error);
    Stop();
  }
  absl::Status error() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }
  // Whether learners are to end before their time.
  bool stopped() const { return stopped_; }

 private:
  const CollectorSettings& settings_;
  const CollectProgress& progress_;
  std::atomic<int64_t> updates_{0};  // of all learners
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  absl::Status error_;
  int tasks_ = 0;
  double reached_ = 0, possible_ = 0;
};

constexpr int64_t kDefaultSeed = 42;
// Larger values are likely mistakes: a history is held in memory.
constexpr int64_t kMostSteps = 100000000;

// Reads fields and keeps the first error.
class Fields {
 public:
  // 0 means the default, which *to has.
  template <typename T, typename U>
  void Positive(const char* field, T value, U* to) {
    if (value > 0) {
      *to = static_cast<U>(value);
    } else if (!(value == 0)) {
      Fail(field, absl::StrCat("must be greater than 0, is ", value));
    }
  }
  void Range(const char* field, double value, double least, double most) {
    if (value >= least && value <= most) return;
    Fail(field,
         absl::StrCat("must be in [", least, ", ", most, "], is ", value));
  }
  const absl::Status& status() const { return status_; }

 private:
  void Fail(const char* field, const std::string& problem) {
    if (status_.ok()) status_ = FieldError(field, problem);
  }

  absl::Status status_;
};

absl::Status ReadPpo(const Ppo& ppo, PpoSettings* to) {
  Fields fields;
  fields.Positive("ppo.n_steps", ppo.n_steps(), &to->steps_per_update);
  fields.Positive("ppo.batch_size", ppo.batch_size(), &to->minibatch_size);
  fields.Positive("ppo.n_epochs", ppo.n_epochs(), &to->epochs);
  fields.Positive("ppo.learning_rate", ppo.learning_rate(), &to->learning_rate);
  fields.Positive("ppo.clip_range", ppo.clip_range(), &to->clip_range);
  fields.Positive("ppo.max_grad_norm", ppo.max_grad_norm(),
                  &to->max_gradient_norm);
  if (ppo.has_gamma()) to->discount = ppo.gamma();
  if (ppo.has_gae_lambda()) to->gae_lambda = ppo.gae_lambda();
  if (ppo.has_vf_coef()) to->value_weight = ppo.vf_coef();
  if (ppo.has_ent_coef()) to->entropy_weight = ppo.ent_coef();
  fields.Range("ppo.learning_rate", to->learning_rate, 0, 1);
  fields.Range("ppo.clip_range", to->clip_range, 0, 1);
  fields.Range("ppo.gamma", to->discount, 0, 1);
  fields.Range("ppo.gae_lambda", to->gae_lambda, 0, 1);
  fields.Range("ppo.vf_coef", to->value_weight, 0, 1e6);
  fields.Range("ppo.ent_coef", to->entropy_weight, 0, 1e6);
  return fields.status();
}

absl::Status ReadRoom(const Config& config, CollectorSettings* to) {
  if (!Config::Variant_IsValid(config.variant())) {
    return FieldError("variant", "must be GOALS or PERMUTED");
  }
  to->origin.environment = "darkroom";
  to->origin.permuted = config.variant() == Config::PERMUTED;
  Room room;
  Fields fields;
  fields.Positive("grid_size", config.grid_size(), &room.size);
  fields.Range("grid_size", room.size, 1, 255);
  fields.Positive("horizon", config.horizon(), &room.horizon);
  to->origin.grid = room.size;
  to->origin.horizon = room.horizon;
  CAPSTAN_RETURN_IF_ERROR(fields.status());
  CAPSTAN_ASSIGN_OR_RETURN(to->environment, EnvironmentOf(to->origin));
  return absl::OkStatus();
}

absl::Status ReadPlugin(const Config& config, CollectorSettings* to) {
  for (const auto& [field, is_set] :
       {std::pair("variant", config.variant() != Config::GOALS),
        {"grid_size", config.grid_size() != 0},
        {"horizon", config.horizon() != 0}}) {
    if (!is_set) continue;
    return FieldError(field,
                      "is of a darkroom; environment names another one, which "
                      "has fields of its own");
  }
  const std::string& url = config.environment().type_url();
  to->origin.environment = url.substr(url.rfind('/') + 1);
  to->origin.config = config.environment().value();
  const auto environment =
      EnvironmentOfPlugin(to->origin.environment, to->origin.config);
  CAPSTAN_RETURN_IF_ERROR(InEnvironmentField(environment.status()));
  to->environment = *environment;
  const EnvironmentSpec spec = to->environment->spec();
  to->origin.horizon = spec.horizon;
  return InEnvironmentField(CheckLearnable(spec));
}

absl::Status ReadEnvironment(const Config& config, CollectorSettings* to) {
  CAPSTAN_RETURN_IF_ERROR(config.has_environment() ? ReadPlugin(config, to)
                                                   : ReadRoom(config, to));
  const int all = to->environment->tasks();
  to->tasks = all;
  Fields fields;
  fields.Positive("tasks", config.tasks(), &to->tasks);
  fields.Range("tasks", to->tasks, 1, all);
  return fields.status();
}

}  // namespace

absl::StatusOr<CollectorSettings> ReadSettings(const Config& config) {
  CollectorSettings to;
  if (config.output().empty()) {
    return FieldError(
        "output", "must be set, or train_data.path: the HDF5 file to write");
  }
  to.output = config.output();
  CAPSTAN_RETURN_IF_ERROR(ReadEnvironment(config, &to));
  CAPSTAN_RETURN_IF_ERROR(ReadPpo(config.ppo(), &to.ppo));
  Fields fields;
  fields.Positive("streams", config.streams(), &to.streams);
  int64_t steps = 100000;
  fields.Positive("steps", config.steps(), &steps);
  CAPSTAN_RETURN_IF_ERROR(fields.status());
  const int64_t update = to.streams * to.ppo.steps_per_update;
  if (steps > kMostSteps || update > kMostSteps) {
    return FieldError(
        steps > kMostSteps ? "steps" : "streams",
        absl::StrCat("asks for ", std::max(steps, update),
                     " steps of a task, which must fit in memory: at most ",
                     kMostSteps));
  }
  if (to.ppo.minibatch_size > update) {
    return FieldError(
        "ppo.batch_size",
        absl::StrCat("is ", to.ppo.minibatch_size, ", but an update has only ",
                     update, " steps, n_steps of each stream"));
  }
  to.updates = (steps + update - 1) / update;
  to.origin.seed = config.has_seed() ? config.seed() : kDefaultSeed;
  to.threads =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  fields.Positive("threads", config.threads(), &to.threads);
  CAPSTAN_RETURN_IF_ERROR(fields.status());
  to.threads = std::min(to.threads, to.tasks);
  return to;
}

absl::StatusOr<std::unique_ptr<DarkroomCollector>> DarkroomCollector::Create(
    const Config& config) {
  CAPSTAN_ASSIGN_OR_RETURN(CollectorSettings settings, ReadSettings(config));
  return std::unique_ptr<DarkroomCollector>(
      new DarkroomCollector(config, std::move(settings)));
}

absl::Status DarkroomCollector::CheckOutput() const {
  // A process of its own would open the file.
  if (!config_.has_environment() && config_.variant() == Config::GOALS &&
      config_.grid_size() == 0 && config_.horizon() == 0) {
    return absl::OkStatus();
  }
  const auto file = HistoryReader::Open(settings_.output);
  // The run's reader says what is wrong with it, and checks a file that
  // doesn't say what it is by the environment's rules.
  if (!file.ok() || !(*file)->origin().has_value()) return absl::OkStatus();
  const HistoryOrigin& is = *(*file)->origin();
  const HistoryOrigin& wanted = settings_.origin;
  for (const auto& [field, named, same] :
       {std::make_tuple(
            "environment", config_.has_environment(),
            is.environment == wanted.environment && is.config == wanted.config),
        {"variant", config_.variant() != Config::GOALS,
         is.permuted == wanted.permuted},
        {"grid_size", config_.grid_size() != 0, is.grid == wanted.grid},
        {"horizon", config_.horizon() != 0, is.horizon == wanted.horizon}}) {
    if (!named || same) continue;
    return FieldError(
        field, absl::StrCat("isn't that of the histories in ", settings_.output,
                            " (", OriginToJson(is),
                            "): leave it out, or collect them anew with "
                            "`trainer collect --force`"));
  }
  return absl::OkStatus();
}

absl::Status DarkroomCollector::Collect(const CollectProgress& progress) {
  const std::filesystem::path folder =
      std::filesystem::path(settings_.output).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return WriteError(folder.string(), error.value());
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HistoryWriter> writer,
                           HistoryWriter::Create(settings_.output));
  CAPSTAN_RETURN_IF_ERROR(writer->Describe(settings_.origin));
  CollectReport report(settings_, progress);
  const auto learn = [&](int64_t task) -> absl::StatusOr<History> {
    std::unique_ptr<PpoLearner> learner;
    try {
      learner = std::make_unique<PpoLearner>(
          settings_.ppo, *settings_.environment, static_cast<int>(task),
          settings_.streams,
          static_cast<uint64_t>(settings_.origin.seed) + task);
      for (int64_t i = 0; i < settings_.updates && !report.stopped(); ++i) {
        learner->Update();
        report.Updated();
      }
    } catch (...) {
      // The others needn't learn to their ends for that.
      report.Fail(CurrentExceptionToStatus());
    }
    CAPSTAN_RETURN_IF_ERROR(report.error());
    report.Learned(learner->mean_return(), settings_.environment->OptimalReturn(
                                               static_cast<int>(task)));
    return learner->history();
  };
  int next = 0;
  CAPSTAN_RETURN_IF_ERROR(InOrder<History>(
      settings_.threads, settings_.tasks, learn,
      [&](const History& history) {
        const absl::Status written = writer->Write(next++, history);
        if (!written.ok()) report.Stop();
        return written;
      },
      [&] { return report.Report(); }));
  CAPSTAN_RETURN_IF_ERROR(report.Report());
  return writer->Commit();
}

CAPSTAN_PLUGIN(
    Collector, DarkroomCollector, ::capstan::darkroom::Config,
    "learning histories of a darkroom or another environment, by PPO "
    "learners");

}  // namespace capstan::darkroom
