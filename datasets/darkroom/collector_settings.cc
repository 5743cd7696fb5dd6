// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "datasets/darkroom/collector.h"

namespace capstan::darkroom {
namespace {

// Larger values are likely mistakes: a history is held in memory.
constexpr int64_t kMostSteps = 100000000;

absl::Status CheckRange(const char* field, double value, double least,
                        double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return FieldError(
      field, absl::StrCat("must be in [", least, ", ", most, "], is ", value));
}

// A field of which 0 means the default.
template <typename T, typename U>
absl::Status TakePositive(const char* field, T value, U* to) {
  if (value == 0) return absl::OkStatus();
  if (!(value > 0)) {
    return FieldError(field,
                      absl::StrCat("must be greater than 0, is ", value));
  }
  *to = static_cast<U>(value);
  return absl::OkStatus();
}

absl::Status ReadPpo(const Ppo& ppo, PpoSettings* to) {
  CAPSTAN_RETURN_IF_ERROR(
      TakePositive("ppo.n_steps", ppo.n_steps(), &to->steps_per_update));
  CAPSTAN_RETURN_IF_ERROR(
      TakePositive("ppo.batch_size", ppo.batch_size(), &to->minibatch_size));
  CAPSTAN_RETURN_IF_ERROR(
      TakePositive("ppo.n_epochs", ppo.n_epochs(), &to->epochs));
  CAPSTAN_RETURN_IF_ERROR(TakePositive("ppo.learning_rate", ppo.learning_rate(),
                                       &to->learning_rate));
  CAPSTAN_RETURN_IF_ERROR(
      TakePositive("ppo.clip_range", ppo.clip_range(), &to->clip_range));
  CAPSTAN_RETURN_IF_ERROR(TakePositive("ppo.max_grad_norm", ppo.max_grad_norm(),
                                       &to->max_gradient_norm));
  if (ppo.has_gamma()) to->discount = ppo.gamma();
  if (ppo.has_gae_lambda()) to->gae_lambda = ppo.gae_lambda();
  if (ppo.has_vf_coef()) to->value_weight = ppo.vf_coef();
  if (ppo.has_ent_coef()) to->entropy_weight = ppo.ent_coef();
  CAPSTAN_RETURN_IF_ERROR(
      CheckRange("ppo.learning_rate", to->learning_rate, 0, 1));
  CAPSTAN_RETURN_IF_ERROR(CheckRange("ppo.clip_range", to->clip_range, 0, 1));
  CAPSTAN_RETURN_IF_ERROR(CheckRange("ppo.gamma", to->discount, 0, 1));
  CAPSTAN_RETURN_IF_ERROR(CheckRange("ppo.gae_lambda", to->gae_lambda, 0, 1));
  CAPSTAN_RETURN_IF_ERROR(CheckRange("ppo.vf_coef", to->value_weight, 0, 1e6));
  return CheckRange("ppo.ent_coef", to->entropy_weight, 0, 1e6);
}

absl::Status ReadRoom(const Config& config, CollectorSettings* to) {
  if (!Config::Variant_IsValid(config.variant())) {
    return FieldError("variant", "must be GOALS or PERMUTED");
  }
  to->variant = config.variant() == Config::PERMUTED ? Variant::kPermuted
                                                     : Variant::kGoals;
  CAPSTAN_RETURN_IF_ERROR(
      TakePositive("grid_size", config.grid_size(), &to->room.size));
  CAPSTAN_RETURN_IF_ERROR(CheckRange("grid_size", to->room.size, 1, 255));
  CAPSTAN_RETURN_IF_ERROR(
      TakePositive("horizon", config.horizon(), &to->room.horizon));
  to->tasks = TaskCount(to->variant, to->room);
  const int all = to->tasks;
  CAPSTAN_RETURN_IF_ERROR(TakePositive("tasks", config.tasks(), &to->tasks));
  return CheckRange("tasks", to->tasks, 1, all);
}

}  // namespace

absl::StatusOr<CollectorSettings> ReadSettings(const Config& config) {
  CollectorSettings to;
  if (config.output().empty()) {
    return FieldError(
        "output", "must be set, or train_data.path: the HDF5 file to write");
  }
  to.output = config.output();
  CAPSTAN_RETURN_IF_ERROR(ReadRoom(config, &to));
  CAPSTAN_RETURN_IF_ERROR(ReadPpo(config.ppo(), &to.ppo));
  CAPSTAN_RETURN_IF_ERROR(
      TakePositive("streams", config.streams(), &to.streams));
  int64_t steps = 100000;
  CAPSTAN_RETURN_IF_ERROR(TakePositive("steps", config.steps(), &steps));
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
  if (config.has_seed()) to.seed = config.seed();
  to.threads =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  CAPSTAN_RETURN_IF_ERROR(
      TakePositive("threads", config.threads(), &to.threads));
  to.threads = std::min(to.threads, to.tasks);
  return to;
}

}  // namespace capstan::darkroom
