// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/candidates.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "kernels/context/recompute.h"
#include "plugins/sdk/strategy.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/run_parts.h"

namespace capstan::fit {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int64_t kLargestMicroBatch = 64;

// A strategy with some of its switches set.
struct Variant {
  std::string package;
  std::vector<std::string> sets;
  std::unique_ptr<Message> config;
  std::unique_ptr<Strategy> strategy;
};

// What a variant of a strategy differs by.
struct Outcome {
  std::vector<int64_t> held;
  int64_t sent_once = 0;
  int64_t sent_twice = 0;
  bool on_host = false;

  bool operator==(const Outcome& other) const {
    return held == other.held && sent_once == other.sent_once &&
           sent_twice == other.sent_twice && on_host == other.on_host;
  }
};

int64_t Sent(const StrategyPlan& plan) {
  return plan.sent_for_gradients + plan.sent_for_parameters;
}

Outcome OutcomeOf(const Strategy& strategy, StrategyRequest request) {
  request.accumulation = 1;
  Outcome outcome;
  outcome.sent_once = Sent(strategy.Plan(request));
  request.accumulation = 2;
  const StrategyPlan plan = strategy.Plan(request);
  outcome.sent_twice = Sent(plan);
  outcome.held = {plan.parameters, plan.gradients, plan.masters,
                  plan.optimizer_elements};
  outcome.on_host = plan.optimizer_on_host || plan.parameters_on_host;
  return outcome;
}

// A value of a switch, and how it is set.
struct Setting {
  std::string set;  // "offload_optimizer.device=CPU"
  std::unique_ptr<Message> config;
};

// Copies of `config` with each value that the switch `field` of `part`, which
// is the message in config at `path`, may have.
void AddSettings(const Message& config, const std::string& path,
                 const std::vector<const FieldDescriptor*>& within,
                 const FieldDescriptor* field, int ranks_of_host,
                 std::vector<Setting>* settings) {
  const auto with = [&](const std::string& value, const auto& set) {
    Setting setting;
    setting.set = absl::StrCat(path, field->name(), "=", value);
    setting.config.reset(config.New());
    setting.config->CopyFrom(config);
    Message* part = setting.config.get();
    for (const FieldDescriptor* step : within) {
      part = part->GetReflection()->MutableMessage(part, step);
    }
    set(part, part->GetReflection());
    settings->push_back(std::move(setting));
  };
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    for (const bool value : {true, false}) {
      with(value ? "true" : "false", [&](Message* part, auto* reflection) {
        reflection->SetBool(part, field, value);
      });
    }
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    for (int i = 0; i < field->enum_type()->value_count(); ++i) {
      const EnumValueDescriptor* const value = field->enum_type()->value(i);
      with(std::string(value->name()), [&](Message* part, auto* reflection) {
        reflection->SetEnum(part, field, value);
      });
    }
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32 &&
             absl::EndsWith(field->name(), "group_size") && ranks_of_host > 1) {
    with(absl::StrCat(ranks_of_host), [&](Message* part, auto* reflection) {
      reflection->SetInt32(part, field, ranks_of_host);
    });
  }
}

std::vector<Setting> SettingsOf(const Message& config,
                                const std::string& field_name,
                                int ranks_of_host) {
  std::vector<Setting> settings;
  const FieldDescriptor* const field =
      config.GetDescriptor()->FindFieldByName(field_name);
  if (field->is_repeated()) return settings;
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    AddSettings(config, "", {}, field, ranks_of_host, &settings);
    return settings;
  }
  for (int i = 0; i < field->message_type()->field_count(); ++i) {
    const FieldDescriptor* const inner = field->message_type()->field(i);
    if (inner->is_repeated()) continue;
    AddSettings(config, absl::StrCat(field->name(), "."), {field}, inner,
                ranks_of_host, &settings);
  }
  return settings;
}

// A strategy's variants whose plans differ, its config's own first. Without a
// GPU there is nothing to offload.
class Variants {
 public:
  Variants(PluginHost* host, const std::string& config_type,
           const StrategyRequest& request, bool on_gpu)
      : host_(host),
        config_type_(config_type),
        request_(request),
        on_gpu_(on_gpu) {}

  // Why the strategy can't be, or OK.
  absl::Status Add(std::unique_ptr<Message> config,
                   std::vector<std::string> sets) {
    CAPSTAN_ASSIGN_OR_RETURN(
        std::unique_ptr<Strategy> strategy,
        host_->Create<Strategy>(config_type_, PluginCategory::kStrategy,
                                config->SerializeAsString()));
    if (strategy->own_curve().has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "it has a curve of its own: ", strategy->own_curve()->why));
    }
    CAPSTAN_RETURN_IF_ERROR(strategy->Check(request_));
    const Outcome outcome = OutcomeOf(*strategy, request_);
    if ((outcome.on_host && !on_gpu_) ||
        std::find(outcomes_.begin(), outcomes_.end(), outcome) !=
            outcomes_.end()) {
      return absl::OkStatus();
    }
    outcomes_.push_back(outcome);
    variants_.push_back({PackageOf(config_type_), std::move(sets),
                         std::move(config), std::move(strategy)});
    return absl::OkStatus();
  }

  void AddSwitches(int ranks_of_host) {
    if (variants_.empty()) return;
    const google::protobuf::Descriptor* const type =
        variants_[0].config->GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const size_t before = variants_.size();
      for (size_t v = 0; v < before; ++v) {
        std::vector<Setting> settings =
            SettingsOf(*variants_[v].config,
                       std::string(type->field(i)->name()), ranks_of_host);
        for (Setting& setting : settings) {
          std::vector<std::string> sets = variants_[v].sets;
          sets.push_back(setting.set);
          // What the strategy refuses isn't one of its variants.
          Add(std::move(setting.config), std::move(sets)).IgnoreError();
        }
      }
    }
  }

  std::vector<Variant> Take() { return std::move(variants_); }

 private:
  PluginHost* const host_;
  const std::string config_type_;
  const StrategyRequest request_;
  const bool on_gpu_;
  std::vector<Outcome> outcomes_;
  std::vector<Variant> variants_;
};

// The config message of a strategy: the run's own, or an empty one.
absl::StatusOr<std::unique_ptr<Message>> ConfigOf(
    const std::string& config_type, const Prepared& prepared) {
  google::protobuf::Any any = prepared.job.loaded.config.strategy();
  if (config_type != TypeOf(any)) {
    any.set_type_url(absl::StrCat("plugin/", config_type));
    any.clear_value();
  }
  return Unpack(any);
}

// The types of all strategies, the run's own first.
std::vector<std::string> StrategyTypes(const Prepared& prepared) {
  std::vector<std::string> types = {
      TypeOf(prepared.job.loaded.config.strategy())};
  for (const std::string& package : prepared.host->Available()) {
    // The strategies are built with the trainer.
    if (!prepared.host->IsBuilt(package)) continue;
    const absl::StatusOr<const LoadedPlugin*> plugin =
        prepared.host->Load(absl::StrCat(package, ".Config"));
    if (plugin.ok() &&
        (*plugin)->descriptor->category == PluginCategory::kStrategy &&
        (*plugin)->config_type != types[0]) {
      types.push_back((*plugin)->config_type);
    }
  }
  return types;
}

// A number among a variant's fields; 0 if there is none whose name ends so.
double NumberOf(const Variant& variant, absl::string_view name) {
  const Message& config = *variant.config;
  const google::protobuf::Descriptor* const type = config.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    if (field->is_repeated() || !absl::EndsWith(field->name(), name)) continue;
    const google::protobuf::Reflection& fields = *config.GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return fields.GetInt32(config, field);
      case FieldDescriptor::CPPTYPE_INT64:
        return static_cast<double>(fields.GetInt64(config, field));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return fields.GetDouble(config, field);
      default:
        break;
    }
  }
  return 0.0;
}

// What is reduced together: what the config says, or strategies' defaults.
void SetBuckets(const Variant& variant, bool on_gpu, double element,
                double ranks, Traffic* traffic) {
  constexpr double kMib = 1 << 20;
  if (on_gpu) {
    traffic->bucket = std::max(traffic->bucket,
                               std::min(std::max(40e6, 1e6 * ranks) * element,
                                        traffic->gradients / 4));
  }
  const double elements = NumberOf(variant, "reduce_bucket_size");
  const double mib = NumberOf(variant, "bucket_cap_mib");
  const double first = NumberOf(variant, "first_bucket_mib");
  if (elements > 0.0) traffic->bucket = elements * element;
  if (mib > 0.0) traffic->bucket = mib * kMib;
  traffic->first_bucket = std::min(traffic->first_bucket, traffic->bucket);
  if (first > 0.0) traffic->first_bucket = first * kMib;
}

// From what is sent with one and with two micro-steps.
Traffic TrafficOf(const Variant& variant, StrategyRequest request,
                  bool on_gpu) {
  const Strategy& strategy = *variant.strategy;
  const int group_size = static_cast<int>(NumberOf(variant, "group_size"));
  request.accumulation = 1;
  const StrategyPlan one = strategy.Plan(request);
  request.accumulation = 2;
  const StrategyPlan two = strategy.Plan(request);
  const auto each = [](int64_t first, int64_t second) {
    return static_cast<double>(std::max<int64_t>(0, second - first));
  };
  Traffic traffic;
  traffic.gradients_each = each(one.sent_for_gradients, two.sent_for_gradients);
  traffic.gradients_once =
      static_cast<double>(one.sent_for_gradients) - traffic.gradients_each;
  traffic.parameters_each =
      each(one.sent_for_parameters, two.sent_for_parameters);
  traffic.parameters_once =
      static_cast<double>(one.sent_for_parameters) - traffic.parameters_each;
  int64_t elements = 0;
  for (const ParameterSpec& spec : request.model->parameters()) {
    if (spec.trainable) elements += spec.numel();
  }
  // Sums that are exact have 8 bytes (docs/strategies.md).
  const double element =
      request.deterministic
          ? 8.0
          : static_cast<double>(c10::elementSize(request.precision.reduce));
  const double gradients = static_cast<double>(elements) * element;
  traffic.gradients = gradients;
  traffic.units = static_cast<int>(request.model->units().size());
  const double ranks = request.world_size;
  traffic.all_reduce =
      traffic.gradients_once > 1.5 * gradients * (ranks - 1) / ranks;
  if (group_size > 0 && group_size < request.world_size) {
    const double replicas = ranks / group_size;
    traffic.to_replicas =
        std::min(traffic.gradients_once,
                 2 * gradients / group_size * (replicas - 1) / replicas);
    traffic.group = group_size;
    traffic.all_reduce = false;
  }
  SetBuckets(variant, on_gpu, element, ranks, &traffic);
  const auto gathered =
      std::count_if(one.forward_buckets.begin(), one.forward_buckets.end(),
                    [](int64_t bytes) { return bytes > 0; });
  traffic.by_unit = one.sent_for_parameters > 0 && gathered > 1;
  return traffic;
}

// What activations take: by the work that it costs.
std::vector<FitChoice> ActivationChoices(bool on_gpu) {
  std::vector<FitChoice> choices(4);
  choices[1].recompute_mlp = true;
  choices[2].checkpoint_every = 2;
  choices[3].checkpoint_every = 1;
  if (on_gpu) {
    FitChoice offloaded = choices[3];
    offloaded.offload_activations = true;
    choices.push_back(offloaded);
  }
  return choices;
}

int64_t PlannedProcess(const Strategy& strategy, MemoryRequest request) {
  request.evaluation_samples = request.evaluation_length = 0;
  request.snapshot = false;
  return PlanMemory(strategy, request).process.value_or(0);
}

// Of one variant on one place.
class Enumeration {
 public:
  Enumeration(const Prepared& prepared, int hosts, int ranks, int64_t own)
      : job_(prepared.job),
        hosts_(hosts),
        ranks_(ranks),
        data_(MeshOf(job_.loaded.config.train(), hosts * ranks).data),
        request_(MemoryRequestOf(job_, hosts * ranks)) {
    const int64_t global = job_.batch.global_batch_size;
    // In the last micro-step some may be idle, but none in all.
    const bool may_idle =
        global > data_ && !job_.parts.objective->has_rollouts();
    if (data_ > 0 && (global % data_ == 0 || may_idle)) {
      sizes_ = MicroBatchSizes(global, data_);
    }
    // A deterministic run's bits depend on its micro-batch.
    const bool keeps = job_.loaded.config.train().deterministic();
    sizes_.erase(std::remove_if(sizes_.begin(), sizes_.end(),
                                [&](int64_t size) {
                                  return keeps ? size != own
                                               : size > kLargestMicroBatch;
                                }),
                 sizes_.end());
  }

  const StrategyRequest& request() const { return request_.strategy; }
  bool possible() const { return !sizes_.empty(); }

  void Add(const Variant& variant, std::vector<Candidate>* all) {
    const Traffic traffic =
        TrafficOf(variant, request_.strategy, request_.on_gpu);
    for (const int64_t size : sizes_) {
      std::vector<int64_t> seen;
      for (const FitChoice& choice : ActivationChoices(request_.on_gpu)) {
        Candidate one = Planned(variant, choice, size);
        one.traffic = traffic;
        if (Known(one)) continue;
        // What frees nothing isn't worth its work.
        const int64_t held = Total(one.plan.at_peak);
        if (!seen.empty() &&
            *std::min_element(seen.begin(), seen.end()) <= held) {
          continue;
        }
        seen.push_back(held);
        all->push_back(std::move(one));
      }
    }
  }

 private:
  // Whether another variant of the strategy does the same with as many
  // micro-steps.
  bool Known(const Candidate& one) {
    return !known_
                .insert({one.choice.strategy, one.Checkpointing(),
                         one.choice.micro_batch, Total(one.plan.at_peak),
                         one.plan.sent})
                .second;
  }

  Candidate Planned(const Variant& variant, const FitChoice& activations,
                    int64_t size) {
    Candidate one;
    one.choice = activations;
    one.choice.strategy = variant.package;
    one.choice.strategy_sets = variant.sets;
    one.choice.micro_batch = size;
    one.choice.global_batch = job_.batch.global_batch_size;
    one.hosts = hosts_;
    one.ranks = ranks_;
    one.accumulation = WithMicroBatch(job_.batch, size, data_).accumulation;
    const Train& train = job_.loaded.config.train();
    one.clears_n = train.activation_checkpointing_n() > 0 &&
                   activations.checkpoint_every <= 1;
    one.clears_offload =
        train.offload().activations() && !activations.offload_activations;
    MemoryRequest request = request_;
    request.samples = size;
    request.strategy.accumulation = one.accumulation;
    request.checkpointing.every = activations.checkpoint_every;
    request.checkpointing.offload = activations.offload_activations;
    SetRecomputesMlp(activations.recompute_mlp);
    one.plan = PlanMemory(*variant.strategy, request);
    one.trial_process = PlannedProcess(*variant.strategy, request);
    const StrategyPlan plan = variant.strategy->Plan(request.strategy);
    one.updated = static_cast<double>(plan.optimizer_elements);
    one.optimizer_on_host = plan.optimizer_on_host;
    one.parameters_on_host = plan.parameters_on_host;
    return one;
  }

  const TrainJob& job_;
  const int hosts_;
  const int ranks_;
  const int data_;
  const MemoryRequest request_;
  std::vector<int64_t> sizes_;
  std::set<std::tuple<std::string, std::string, int64_t, int64_t, int64_t>>
      known_;
};

std::string PlaceText(int hosts, int ranks) {
  return absl::StrCat(hosts > 1 ? absl::StrCat(hosts, " hosts of ") : "", ranks,
                      ranks == 1 ? " rank" : " ranks");
}

}  // namespace

std::string Candidate::Strategy() const {
  return absl::StrCat(choice.strategy, choice.strategy_sets.empty() ? "" : " ",
                      absl::StrJoin(choice.strategy_sets, " "));
}

std::string Candidate::Checkpointing() const {
  const std::string name =
      choice.recompute_mlp           ? "MLP"
      : choice.checkpoint_every == 0 ? "NONE"
      : choice.checkpoint_every == 1
          ? "EVERY_UNIT"
          : absl::StrCat("EVERY_N ", choice.checkpoint_every);
  return absl::StrCat(name, choice.offload_activations ? " offload" : "");
}

std::vector<std::string> Candidate::Overrides() const {
  std::vector<std::string> sets = choice.Overrides();
  sets.push_back(absl::StrCat("launch.processes=", ranks));
  sets.push_back(absl::StrCat("batch.micro_batch_size=", choice.micro_batch));
  sets.push_back(absl::StrCat("batch.global_batch_size=", choice.global_batch));
  const std::string name = choice.recompute_mlp           ? "MLP"
                           : choice.checkpoint_every == 0 ? "NONE"
                           : choice.checkpoint_every == 1 ? "EVERY_UNIT"
                                                          : "EVERY_N";
  sets.push_back(absl::StrCat("train.activation_checkpointing=", name));
  if (choice.checkpoint_every > 1) {
    sets.push_back(absl::StrCat("train.activation_checkpointing_n=",
                                choice.checkpoint_every));
  }
  if (clears_n) sets.push_back("train.activation_checkpointing_n=0");
  if (clears_offload) sets.push_back("train.offload.activations=false");
  if (choice.offload_activations) {
    sets.push_back("train.offload.activations=true");
  }
  return sets;
}

Measured StepOf(const Candidate& candidate) {
  Measured step;
  step.hosts = candidate.hosts;
  step.ranks = candidate.ranks;
  step.strategy = candidate.Strategy();
  step.checkpointing = candidate.Checkpointing();
  step.samples = candidate.choice.micro_batch;
  step.accumulation = candidate.accumulation;
  step.collectives = candidate.traffic.Collectives(candidate.accumulation);
  step.updated = candidate.updated;
  step.planned = candidate.trial_process;
  return step;
}

absl::StatusOr<Candidates> FindCandidates(
    const Prepared& prepared, const std::vector<std::pair<int, int>>& places,
    int64_t micro_batch) {
  Candidates found;
  const bool recomputes_mlp = RecomputesMlp();
  std::map<std::string, std::string> refused;
  std::set<std::string> accepted;
  for (const auto& [hosts, ranks] : places) {
    const absl::Status mesh =
        CheckMesh(prepared.job.loaded.config.train(), hosts * ranks);
    if (!mesh.ok()) {
      found.left_out.push_back(
          {PlaceText(hosts, ranks), std::string(mesh.message())});
      continue;
    }
    Enumeration enumeration(prepared, hosts, ranks, micro_batch);
    if (!enumeration.possible()) {
      found.left_out.push_back(
          {PlaceText(hosts, ranks),
           absl::StrCat("the global batch of ",
                        prepared.job.batch.global_batch_size,
                        " samples can't be divided among them",
                        prepared.job.loaded.config.train().deterministic()
                            ? ", by the micro-batch that a deterministic run "
                              "keeps"
                            : "")});
      continue;
    }
    std::vector<Outcome> known;  // of this place, by any strategy
    for (const std::string& type : StrategyTypes(prepared)) {
      CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Message> config,
                               ConfigOf(type, prepared));
      Variants variants(prepared.host.get(), type, enumeration.request(),
                        prepared.job.gpus > 0);
      const absl::Status status = variants.Add(std::move(config), {});
      if (!status.ok()) {
        // The last place's reason is as good as the first's.
        refused[PackageOf(type)] = std::string(status.message());
        continue;
      }
      accepted.insert(PackageOf(type));
      variants.AddSwitches(hosts > 1 ? ranks : 0);
      for (const Variant& variant : variants.Take()) {
        // Alone a rank has no one to share with: strategies are then the same.
        const Outcome outcome =
            OutcomeOf(*variant.strategy, enumeration.request());
        if (hosts * ranks == 1 &&
            std::find(known.begin(), known.end(), outcome) != known.end()) {
          continue;
        }
        known.push_back(outcome);
        enumeration.Add(variant, &found.all);
      }
    }
  }
  SetRecomputesMlp(recomputes_mlp);
  for (const auto& [package, why] : refused) {
    if (accepted.count(package) == 0) {
      found.left_out.push_back({package, why});
    }
  }
  return found;
}

}  // namespace capstan::fit
