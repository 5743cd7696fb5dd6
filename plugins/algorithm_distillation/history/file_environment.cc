// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/history/file_environment.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/darkroom/history_origin.h"
#include "plugins/algorithm_distillation/play.h"

namespace capstan::ad_history {
namespace {

using darkroom::Darkroom;
using darkroom::History;
using darkroom::Variant;
using EnvironmentOrError = absl::StatusOr<std::shared_ptr<const Environment>>;

// "(4, 5)"
std::string Shown(const uint8_t* observation, int numbers) {
  return absl::StrCat(
      "(", absl::StrJoin(observation, observation + numbers, ", "), ")");
}

const char* TasksName(bool permuted) { return permuted ? "PERMUTED" : "GOALS"; }

absl::Status CheckTasksField(const Config& config, bool permuted,
                             const std::string& path) {
  const bool wanted = config.tasks() == Config::PERMUTED;
  if (!config.has_tasks() || wanted == permuted) return absl::OkStatus();
  return FieldError("tasks",
                    absl::StrCat("is ", TasksName(wanted), ", but ", path,
                                 " has histories of ", TasksName(permuted)));
}

std::string TypeIn(const google::protobuf::Any& any) {
  return any.type_url().substr(any.type_url().rfind('/') + 1);
}

// Of a file that says what it is.
EnvironmentOrError Said(const darkroom::HistoryOrigin& origin,
                        const Config& config, const std::string& path) {
  const bool darkroom = origin.grid > 0;
  if (config.has_environment() &&
      TypeIn(config.environment()) != origin.environment) {
    return FieldError(
        "environment",
        absl::StrCat("is ", TypeIn(config.environment()), ", but ", path,
                     " has histories of ", origin.environment, ", as it says"));
  }
  if (darkroom) {
    CAPSTAN_RETURN_IF_ERROR(CheckTasksField(config, origin.permuted, path));
  } else if (config.has_tasks()) {
    return FieldError(
        "tasks", absl::StrCat("is of darkrooms; ", path, " has histories of ",
                              origin.environment));
  }
  EnvironmentOrError environment = darkroom::EnvironmentOf(origin);
  if (environment.ok()) return environment;
  return FieldError("path",
                    absl::StrCat(path, ": ", environment.status().message()));
}

// Finds out which darkroom a file that doesn't say it is of.
class Detective {
 public:
  Detective(const darkroom::HistoryReader& file, const Config& config)
      : file_(file), config_(config) {
    // Whatever a darkroom may have.
    loose_ = Darkroom(Variant::kGoals, {255, 1}).spec();
  }

  EnvironmentOrError Find() {
    const int first = file_.tasks()[0];
    CAPSTAN_ASSIGN_OR_RETURN(const History history, Read(first));
    const auto done =
        std::find(history.dones.begin(), history.dones.end(), uint8_t{1});
    if (done == history.dones.end()) {
      return Bad("no episode ends in the first history of task ", first,
                 ", so that it can't be told how long they are");
    }
    horizon_ = static_cast<int>(done - history.dones.begin()) + 1;
    const int row = history.states[0], column = history.states[1];
    if (row != column) {
      return Bad("the first episode begins at (", row, ", ", column,
                 "): neither in the middle of a room nor in its corner");
    }
    const bool permuted = row == 0;
    CAPSTAN_RETURN_IF_ERROR(CheckTasksField(config_, permuted, file_.path()));
    if (permuted) return Permuted();
    // The middle of both.
    return FirstThatFits(
        {Make(Variant::kGoals, 2 * row + 1), Make(Variant::kGoals, 2 * row)});
  }

 private:
  template <typename... Parts>
  absl::Status Bad(const Parts&... problem) const {
    return FieldError(
        "path", absl::StrCat(file_.path(),
                             " doesn't say what its histories are of, and ",
                             problem...));
  }

  absl::StatusOr<History> Read(int task) const {
    auto history = file_.Read(task, loose_, /*steps=*/-1, /*streams=*/1);
    if (!history.ok()) return FieldError("path", history.status().message());
    return history;
  }

  std::shared_ptr<const Environment> Make(Variant variant, int size) const {
    return std::make_shared<Darkroom>(variant, darkroom::Room{size, horizon_});
  }

  // The goal is in the last corner: the first reward tells how far that is.
  EnvironmentOrError Permuted() const {
    for (const int task : file_.tasks()) {
      CAPSTAN_ASSIGN_OR_RETURN(const History history, Read(task));
      for (int64_t i = 0; i < history.steps; ++i) {
        if (history.rewards[i] == 0 || history.dones[i] != 0) continue;
        return FirstThatFits(
            {Make(Variant::kPermuted, history.next_states[2 * i] + 1)});
      }
    }
    return Bad(
        "none has a reward, so that it can't be told how large the room "
        "is");
  }

  // The first that the histories don't contradict; if all do, what contradicts
  // the first.
  EnvironmentOrError FirstThatFits(
      std::vector<std::shared_ptr<const Environment>> candidates) const {
    absl::Status why;
    for (const int task : file_.tasks()) {
      CAPSTAN_ASSIGN_OR_RETURN(const History history, Read(task));
      const auto contradicted =
          [&](const std::shared_ptr<const Environment>& candidate) {
            const absl::Status status =
                task < candidate->tasks()
                    ? CheckHistory(*candidate, file_.path(), task, history)
                    : file_.CheckTasks(*candidate);
            if (why.ok()) why = status;
            return !status.ok();
          };
      candidates.erase(
          std::remove_if(candidates.begin(), candidates.end(), contradicted),
          candidates.end());
      if (candidates.empty()) return FieldError("path", why.message());
      if (candidates.size() == 1) break;
    }
    return candidates[0];
  }

  const darkroom::HistoryReader& file_;
  const Config& config_;
  EnvironmentSpec loose_;
  int horizon_ = 0;
};

}  // namespace

EnvironmentOrError FindEnvironment(const darkroom::HistoryReader& file,
                                   const Config& config) {
  if (config.has_tasks() && config.has_environment()) {
    return FieldError("tasks", "is of darkrooms, not of an environment");
  }
  EnvironmentOrError environment;
  if (file.origin().has_value()) {
    environment = Said(*file.origin(), config, file.path());
  } else if (config.has_environment()) {
    environment = darkroom::EnvironmentOfPlugin(TypeIn(config.environment()),
                                                config.environment().value());
    CAPSTAN_RETURN_IF_ERROR(darkroom::InEnvironmentField(environment.status()));
  } else {
    environment = Detective(file, config).Find();
  }
  CAPSTAN_RETURN_IF_ERROR(environment.status());
  const absl::Status tasks = file.CheckTasks(**environment);
  if (!tasks.ok()) return FieldError("path", tasks.message());
  return environment;
}

absl::Status CheckHistory(const Environment& environment,
                          const std::string& path, int task,
                          const History& history) {
  const EnvironmentSpec spec = environment.spec();
  const int64_t streams = history.streams, numbers = spec.numbers;
  Play play(environment, std::vector<int>(streams, task));
  const std::vector<uint8_t> start = play.observations();
  std::vector<int> rewards(streams);
  for (int64_t step = 0; step < history.steps; ++step) {
    const int64_t at = step * streams;
    const std::vector<uint8_t> before = play.observations();
    play.Step(&history.actions[at], rewards.data());
    const bool done = play.done();
    for (int64_t s = 0; s < streams; ++s) {
      const int64_t i = at + s;
      const auto differs = [&](const char* dataset, const std::string& is,
                               const std::string& wanted) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": ", task, "/", dataset, " has ", is, " at [", step, ", ", s,
            "], but in this environment (", environment.TaskName(task),
            ", episodes of ", spec.horizon, " steps) it is ", wanted));
      };
      const auto same = [numbers](const uint8_t* a, const uint8_t* b) {
        return std::equal(a, a + numbers, b);
      };
      const uint8_t* const state = &history.states[i * numbers];
      const uint8_t* const next = &history.next_states[i * numbers];
      if (!same(state, &before[s * numbers])) {
        return differs("states", Shown(state, spec.numbers),
                       Shown(&before[s * numbers], spec.numbers));
      }
      if (!same(next, play.observation(s)) &&
          !(done && same(next, &start[s * numbers]))) {
        return differs("next_states", Shown(next, spec.numbers),
                       Shown(play.observation(s), spec.numbers));
      }
      if (history.rewards[i] != spec.RewardByte(rewards[s])) {
        return differs("rewards",
                       absl::StrCat(history.rewards[i] + spec.least_reward),
                       absl::StrCat(rewards[s]));
      }
      if ((history.dones[i] != 0) != done) {
        return differs("dones", done ? "false" : "true",
                       done ? "true" : "false");
      }
    }
    if (done) play.Reset();
  }
  return absl::OkStatus();
}

}  // namespace capstan::ad_history
