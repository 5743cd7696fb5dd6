// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/rewards.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/grpo/rewards/row_field.h"
#include "plugins/sdk/part.h"

namespace capstan::grpo {
namespace {

// "plugin/acme.style.Config" -> "acme.style.Config"
std::string TypeOf(const google::protobuf::Any& any) {
  return any.type_url().substr(any.type_url().rfind('/') + 1);
}

MadeReward NewPlugin(const google::protobuf::Any& config) {
  const std::string type = TypeOf(config);
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Part> part,
                           CreatePart(type, config.value()));
  auto* const reward = dynamic_cast<RewardFunction*>(part.get());
  if (reward == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        type, " isn't a reward: it must derive from grpo::RewardFunction"));
  }
  part.release();
  return std::unique_ptr<RewardFunction>(reward);
}

MadeReward NewReward(const Reward& config) {
  switch (config.kind_case()) {
    case Reward::kExactMatch:
      return NewExactMatch(config.exact_match());
    case Reward::kMathAnswer:
      return NewMathAnswer(config.math_answer());
    case Reward::kRegex:
      return NewRegex(config.regex());
    case Reward::kLength:
      return NewLength(config.length());
    case Reward::kJsonSchema:
      return NewJsonSchema(config.json_schema());
    case Reward::kTags:
      return NewTags(config.tags());
    case Reward::kCode:
      return NewCode(config.code());
    case Reward::kProgram:
      return NewProgram(config.program());
    case Reward::kHttp:
      return NewHttp(config.http());
    case Reward::kModel:
      return NewModel(config.model());
    case Reward::kPlugin:
      return NewPlugin(config.plugin());
    case Reward::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("has no kind: math_answer { .. }, say");
}

// "math_answer"; of a plugin "acme.style".
std::string KindName(const Reward& config) {
  if (config.has_plugin()) {
    const std::string type = TypeOf(config.plugin());
    return type.substr(0, type.rfind('.'));
  }
  const google::protobuf::OneofDescriptor* const kinds =
      Reward::descriptor()->FindOneofByName("kind");
  const google::protobuf::FieldDescriptor* const kind =
      config.GetReflection()->GetOneofFieldDescriptor(config, kinds);
  return kind == nullptr ? "" : kind->name();
}

// The error as one of the whole config's fields.
absl::Status AtReward(int i, const Reward& config, const absl::Status& status) {
  std::string place = absl::StrCat("reward[", i, "]");
  const absl::optional<std::string> field = FieldOf(status);
  if (field.has_value()) {
    absl::StrAppend(&place, ".",
                    config.has_plugin() ? "plugin" : KindName(config), ".",
                    *field);
  }
  return FieldError(place, status.message());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rewards>> Rewards::Create(
    const google::protobuf::RepeatedPtrField<Reward>& configs) {
  if (configs.empty()) {
    return FieldError("reward", "at least one must be set");
  }
  auto rewards = absl::WrapUnique(new Rewards);
  for (int i = 0; i < configs.size(); ++i) {
    const Reward& config = configs[i];
    MadeReward made = NewReward(config);
    if (!made.ok()) return AtReward(i, config, made.status());
    const std::string name =
        config.name().empty() ? KindName(config) : config.name();
    for (const std::string& other : rewards->names_) {
      if (other != name) continue;
      return FieldError(
          absl::StrCat("reward[", i, "].name"),
          absl::StrCat("must differ from others, is \"", name, "\" again"));
    }
    const double weight = config.has_weight() ? config.weight() : 1.0;
    if (!(std::abs(weight) <= std::numeric_limits<float>::max())) {
      return FieldError(absl::StrCat("reward[", i, "].weight"),
                        absl::StrCat("must be finite, is ", weight));
    }
    rewards->configs_.push_back(config);
    rewards->names_.push_back(name);
    rewards->weights_.push_back(weight);
    rewards->functions_.push_back(*std::move(made));
  }
  return rewards;
}

absl::Status Rewards::CheckRow(absl::string_view row) const {
  for (size_t f = 0; f < functions_.size(); ++f) {
    const absl::Status status = functions_[f]->CheckRow(row);
    if (FieldOf(status).has_value()) {
      return AtReward(static_cast<int>(f), configs_[f], status);
    }
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("the reward ", names_[f]));
    }
  }
  return absl::OkStatus();
}

Probes Rewards::probes() const {
  Probes probes;
  for (size_t f = 0; f < functions_.size(); ++f) {
    const auto* const probed = dynamic_cast<const Probed*>(functions_[f].get());
    if (probed == nullptr) continue;
    const absl::optional<Probe> probe = probed->probe();
    if (probe.has_value()) probes[names_[f]] = *probe;
  }
  return probes;
}

absl::StatusOr<Rewards::Scores> Rewards::Score(
    absl::Span<const Answer> answers) {
  Scores scores;
  for (size_t f = 0; f < functions_.size(); ++f) {
    const std::string name = absl::StrCat("the reward ", names_[f]);
    absl::StatusOr<std::vector<double>> values = functions_[f]->Score(answers);
    if (!values.ok()) return Annotate(values.status(), name);
    if (values->size() != answers.size()) {
      return absl::InternalError(absl::StrCat(name, " gave ", values->size(),
                                              " values for ", answers.size(),
                                              " answers"));
    }
    scores.values.push_back(*std::move(values));
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    double total = 0.0;
    bool any = false;
    for (size_t f = 0; f < functions_.size(); ++f) {
      const double value = scores.values[f][i];
      if (std::isnan(value)) continue;
      any = true;
      total += weights_[f] * value;
    }
    if (!any) {
      return absl::InvalidArgumentError(
          absl::StrCat("none of the rewards (", absl::StrJoin(names_, ", "),
                       ") applies to the answer to ", Quoted(answers[i].prompt),
                       "; add one that does, or remove such rows"));
    }
    if (!(std::abs(total) <= std::numeric_limits<float>::max())) {
      return absl::OutOfRangeError(absl::StrCat(
          "the rewards of the answer to ", Quoted(answers[i].prompt),
          " add up to ", total, ", which no float holds"));
    }
    scores.totals.push_back(total);
  }
  return scores;
}

}  // namespace capstan::grpo
