// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/run_identity.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/digest.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "inference/evaluate/task_suite.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/options.pb.h"
#include "trainer/checkpoint/base_weights.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/eval_tasks.h"
#include "trainer/session/forgotten_rows.h"
#include "trainer/session/schedule.h"
#include "trainer/session/session.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::json;

constexpr char kEvalSets[] = "eval_sets.";
constexpr char kEvalTasks[] = "eval_tasks.";
constexpr char kSchedule[] = "schedule";
constexpr char kMaxSteps[] = "train.max_steps";
constexpr char kMaxGradNorm[] = "train.max_grad_norm";

// What a config's paths stand for.
enum class Paths {
  kElsewhere,  // what is there is identified elsewhere
  kAsWritten,
  kByContent,  // of a file
};

absl::StatusOr<std::string> PathValue(const std::string& path, Paths paths) {
  if (paths != Paths::kByContent || !IsRegularFile(path)) return path;
  CAPSTAN_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  return DigestOfFile(*file);
}

// Adds the fields of `message` that are set, but for those that may change, as
// PREFIX.FIELD.
absl::Status AddFields(const Message& message, const std::string& prefix,
                       Paths paths, RunIdentity* identity) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->options().GetExtension(may_change)) continue;
    const bool is_path = field->options().GetExtension(path);
    if (is_path && paths == Paths::kElsewhere) continue;
    const std::string name = absl::StrCat(prefix, ".", field->name());
    const int count =
        field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const std::string one =
          field->is_repeated() ? absl::StrCat(name, "[", i, "]") : name;
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        CAPSTAN_RETURN_IF_ERROR(
            AddFields(field->is_repeated()
                          ? reflection.GetRepeatedMessage(message, field, i)
                          : reflection.GetMessage(message, field),
                      one, paths, identity));
        continue;
      }
      std::string& value = (*identity)[one];
      if (is_path && !field->is_repeated()) {
        CAPSTAN_ASSIGN_OR_RETURN(
            value, PathValue(reflection.GetString(message, field), paths));
        continue;
      }
      google::protobuf::TextFormat::PrintFieldValueToString(
          message, field, field->is_repeated() ? i : -1, &value);
    }
  }
  return absl::OkStatus();
}

// What a field is where it isn't set, as AddFields has it: its default_value,
// else protobuf's. "" if there is none, or it is a text, of which "" often
// stands for what depends on the run.
std::string DefaultOf(const Message& message, const FieldDescriptor& field) {
  const std::unique_ptr<Message> one(message.New());
  const std::string& value = field.options().GetExtension(default_value);
  const bool told =
      !value.empty() && google::protobuf::TextFormat::ParseFieldValueFromString(
                            value, &field, one.get());
  if (!told && (field.has_presence() ||
                field.cpp_type() == FieldDescriptor::CPPTYPE_STRING)) {
    return "";
  }
  std::string printed;
  google::protobuf::TextFormat::PrintFieldValueToString(*one, &field, -1,
                                                        &printed);
  return printed;
}

// Adds what each field of `message` is by default, those of messages in it,
// too, unless `identity` has another.
void AddDefaultsOf(const Message& message, const std::string& prefix,
                   RunIdentity* identity) {
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const std::string name = absl::StrCat(prefix, ".", field.name());
    const bool nested = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (field.is_repeated()) {
      const int size = nested ? reflection.FieldSize(message, &field) : 0;
      for (int j = 0; j < size; ++j) {
        AddDefaultsOf(reflection.GetRepeatedMessage(message, &field, j),
                      absl::StrCat(name, "[", j, "]"), identity);
      }
    } else if (!nested) {
      const std::string value = DefaultOf(message, field);
      if (!value.empty()) identity->emplace(name, value);
    } else if (field.message_type() != &descriptor) {
      AddDefaultsOf(reflection.GetMessage(message, &field), name, identity);
    }
  }
}

absl::Status AddSlot(const std::string& slot, const google::protobuf::Any& any,
                     Paths paths, RunIdentity* identity) {
  // Tests give parts without a config.
  if (any.type_url().empty()) return absl::OkStatus();
  (*identity)[slot] = PackageOf(TypeOf(any));
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Message> message, Unpack(any));
  return AddFields(*message, slot, paths, identity);
}

absl::Status AddData(const std::string& slot, const google::protobuf::Any& any,
                     const DatasetReader& data, RunIdentity* identity) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string digest, data.Digest());
  CAPSTAN_RETURN_IF_ERROR(
      AddSlot(slot, any, digest.empty() ? Paths::kAsWritten : Paths::kElsewhere,
              identity));
  if (!digest.empty()) absl::StrAppend(&(*identity)[slot], ", ", digest);
  return absl::OkStatus();
}

// Adds config.json's keys, those of objects in it as KEY.KEY.
void AddKeys(const Json& object, const std::string& prefix,
             RunIdentity* identity) {
  // Of the file's history, its weights' form and other programs' ways, not of
  // what is computed here.
  static const auto* const others =
      new std::set<std::string>{"_attn_implementation", "_name_or_path",
                                "architectures",        "dtype",
                                "initializer_range",    "torch_dtype",
                                "transformers_version", "use_cache"};
  for (const auto& [key, value] : object.items()) {
    if (others->count(key) > 0) continue;
    const std::string name = absl::StrCat(prefix, ".", key);
    if (value.is_object()) {
      AddKeys(value, name, identity);
    } else {
      (*identity)[name] = value.dump();
    }
  }
}

// What the model says of itself in final/.
absl::Status AddModel(const Model& model, RunIdentity* identity) {
  const ScratchFolder folder;
  CAPSTAN_RETURN_IF_ERROR(folder.status());
  CAPSTAN_RETURN_IF_ERROR(
      model.SaveConfig(folder.path(), c10::ScalarType::Float));
  const absl::StatusOr<std::string> text =
      ReadWholeFile(folder.path() + "/config.json");
  if (!text.ok()) return absl::OkStatus();
  const Json json = ParseJson<Json>(*text);
  if (json.is_object()) AddKeys(json, "model", identity);
  return absl::OkStatus();
}

// JSON without white space; `text` if it is none.
std::string WithoutSpace(const std::string& text) {
  std::string bare(text.size(), '\0');
  size_t size = 0;
  if (simdjson::minify(text.data(), text.size(), &bare[0], size) !=
      simdjson::SUCCESS) {
    return text;
  }
  bare.resize(size);
  return bare;
}

// The same of the tokenizer: a digest of the files that it would save.
absl::Status AddTokenizer(const Tokenizer& tokenizer, RunIdentity* identity) {
  const ScratchFolder folder;
  CAPSTAN_RETURN_IF_ERROR(folder.status());
  CAPSTAN_RETURN_IF_ERROR(tokenizer.Save(folder.path()));
  std::error_code error;
  std::set<std::string> names;
  for (fs::directory_iterator it(folder.path(), error), end;
       !error && it != end; it.increment(error)) {
    names.insert(it->path().filename().string());
  }
  std::string all;
  for (const std::string& name : names) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::string text,
        ReadWholeFile(absl::StrCat(folder.path(), "/", name)));
    // White space in JSON says nothing.
    const std::string bare =
        absl::EndsWith(name, ".json") ? WithoutSpace(text) : text;
    absl::StrAppend(&all, name, " ", bare.size(), "\n", bare);
  }
  (*identity)["tokenizer"] = DigestText(all);
  return absl::OkStatus();
}

void AddTasks(const evaluate::TaskSuite& suite, RunIdentity* identity) {
  for (const evaluate::SuiteTask& task : suite.tasks()) {
    (*identity)[kEvalTasks + task.name] = task.digest;
  }
  for (const evaluate::SuiteGroup& group : suite.groups()) {
    std::string all;
    for (const size_t task : group.tasks) {
      absl::StrAppend(&all, suite.tasks()[task].digest, "\n");
    }
    (*identity)[kEvalTasks + group.name] = DigestText(all);
  }
}

void AddAdapter(const AdapterSpec& lora, RunIdentity* identity) {
  const auto add = [identity](const char* name, const std::string& value) {
    (*identity)[absl::StrCat("adapter.lora.", name)] = value;
  };
  add("rank", absl::StrCat(lora.rank));
  add("alpha", absl::StrCat(lora.alpha));
  add("dropout", absl::StrCat(lora.dropout));
  add("rslora", lora.rslora ? "true" : "false");
  if (lora.dora) add("dora", "true");
  // In whatever order they are named.
  const auto names = [](const std::vector<std::string>& modules) {
    return absl::StrJoin(std::set<std::string>(modules.begin(), modules.end()),
                         ", ");
  };
  add("target_modules", names(lora.target_modules));
  if (!lora.modules_to_save.empty()) {
    add("modules_to_save", names(lora.modules_to_save));
  }
  const char* const quantize = QuantizeName(lora.quantize);
  add("quantize", quantize == nullptr ? "none" : quantize);
}

// The weights that no checkpoint has.
absl::Status AddBase(const RunConfig& config, const RunParts& parts,
                     IdentifiedRun* run) {
  const std::vector<ParameterSpec>& specs = parts.model->parameters();
  const std::string folder = BaseModelOf(config).folder;
  if (folder.empty() ||
      std::all_of(specs.begin(), specs.end(),
                  [](const ParameterSpec& spec) { return spec.trainable; })) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> digest = DigestOfWeights(folder);
  // A model's weights may be in files of its own kind.
  if (absl::IsNotFound(digest.status())) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(digest.status());
  run->identity[kBaseIdentity] = *digest;
  const std::string& adapter = config.adapter().lora().pretrained();
  if (adapter.empty()) return absl::OkStatus();
  const absl::Status same = CompareBaseWeights(adapter, folder, *digest);
  if (!same.ok()) {
    run->notes.push_back(
        absl::StrCat("WARNING: adapter.lora.pretrained: ", same.message()));
  }
  return absl::OkStatus();
}

bool IsBelow(absl::string_view name, absl::string_view above) {
  return absl::StartsWith(name, above) &&
         (name.size() == above.size() ||
          absl::string_view(".[").find(name[above.size()]) !=
              absl::string_view::npos);
}

bool IsOfEvaluation(absl::string_view name) {
  return IsBelow(name, "eval_data") || IsBelow(name, "eval_sets") ||
         IsBelow(name, "eval_tasks");
}

// The slot of an evaluation's name, "eval_sets.NAME", and how its metrics'
// names begin, "eval_NAME_".
std::pair<std::string, std::string> EvaluationOf(absl::string_view name) {
  absl::string_view rest = name;
  if (absl::ConsumePrefix(&rest, kEvalTasks)) {
    return {std::string(name), MetricName(TaskTag(std::string(rest), ""))};
  }
  if (!absl::ConsumePrefix(&rest, kEvalSets)) return {"eval_data", "eval_"};
  const std::string set(rest.substr(0, rest.find_first_of(".[")));
  return {absl::StrCat(kEvalSets, set), absl::StrCat("eval_", set, "_")};
}

// Whose metric train.best_metric is, of those named: the longest name counts,
// as one may begin another.
std::string DecidesWhatIsBest(const std::set<std::string>& names,
                              const Train& train) {
  if (!KeepsBest(train)) return "";
  std::pair<std::string, std::string> best = EvaluationOf("eval_data");
  for (const std::string& name : names) {
    if (!IsOfEvaluation(name)) continue;
    const auto one = EvaluationOf(name);
    if (absl::StartsWith(train.best_metric(), one.second) &&
        one.second.size() > best.second.size()) {
      best = one;
    }
  }
  return best.first;
}

std::set<std::string> NamesIn(const RunIdentity& a, const RunIdentity& b) {
  std::set<std::string> names;
  for (const RunIdentity* identity : {&a, &b}) {
    for (const auto& [name, value] : *identity) names.insert(name);
  }
  return names;
}

bool Same(const RunIdentity& a, const RunIdentity& b, const std::string& name) {
  const auto in_a = a.find(name);
  const auto in_b = b.find(name);
  return in_a != a.end() && in_b != b.end() && in_a->second == in_b->second;
}

std::string ShownIn(const RunIdentity& identity, const std::string& name) {
  constexpr size_t kMost = 200;
  const auto found = identity.find(name);
  if (found == identity.end()) return "unset";
  if (found->second.empty()) return "\"\"";
  return found->second.size() <= kMost
             ? found->second
             : absl::StrCat(found->second.substr(0, kMost), "..");
}

// Whether a config of `mine`'s plugins has the field, and runs are compared by
// it if it is set.
bool IsCompared(const std::string& name, const RunIdentity& mine) {
  const google::protobuf::Descriptor* message = RunConfig::descriptor();
  std::string above;
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  for (const std::string& part : parts) {
    if (message == nullptr) return false;
    const FieldDescriptor* const field =
        message->FindFieldByName(part.substr(0, part.find('[')));
    if (field == nullptr || field->options().GetExtension(may_change)) {
      return false;
    }
    absl::StrAppend(&above, above.empty() ? "" : ".", part);
    message = field->message_type();
    if (message != google::protobuf::Any::descriptor()) continue;
    // "capstan.chat, 100 bytes, ..".
    const auto slot = mine.find(above);
    message = slot == mine.end()
                  ? nullptr
                  : google::protobuf::DescriptorPool::generated_pool()
                        ->FindMessageTypeByName(absl::StrCat(
                            slot->second.substr(0, slot->second.find(',')),
                            ".Config"));
  }
  return true;
}

// What to say of each name in train.resume_with_changes that is none of `names`
// and contains none.
std::vector<std::string> Misspelt(const std::set<std::string>& names,
                                  const RunIdentity& mine, const Train& train) {
  std::set<std::string> known;
  for (const std::string& name : names) {
    for (size_t end = 0; end != std::string::npos;) {
      end = name.find_first_of(".[", end + 1);
      known.insert(name.substr(0, end));
    }
  }
  std::vector<std::string> told;
  for (const std::string& named : train.resume_with_changes()) {
    if (known.count(named) > 0) continue;
    if (IsCompared(named, mine)) {
      told.push_back(absl::StrCat("train.resume_with_changes: \"", named,
                                  "\" isn't set in either run"));
      continue;
    }
    const std::string near = NearestName(
        named, std::vector<std::string>(known.begin(), known.end()));
    told.push_back(absl::StrCat(
        "train.resume_with_changes: \"", named,
        "\" is nothing that a resumed run compares",
        near.empty() ? "" : absl::StrCat(": did you mean \"", near, "\"?")));
  }
  return told;
}

// Whether all updates so far had the factors that they would have now.
bool SameFactors(const RunIdentity& earlier, const RunIdentity& mine,
                 int64_t optimizer_steps) {
  const auto parse = [](const RunIdentity& identity, Schedule* schedule,
                        int64_t* max_steps) {
    const auto text = identity.find(kSchedule);
    const auto steps = identity.find(kMaxSteps);
    return text != identity.end() && steps != identity.end() &&
           google::protobuf::TextFormat::ParseFromString(text->second,
                                                         schedule) &&
           absl::SimpleAtoi(steps->second, max_steps);
  };
  Schedule was, is;
  int64_t was_steps = 0, is_steps = 0;
  if (!parse(earlier, &was, &was_steps) || !parse(mine, &is, &is_steps)) {
    return false;
  }
  return capstan::SameFactors(was, was_steps, is, is_steps, optimizer_steps);
}

// What to say if another train.max_steps alone may have made the schedule
// another, by scaling parts of it (ScheduleFit); "": it hasn't.
std::string ScaledSchedule(const RunIdentity& earlier,
                           const RunIdentity& mine) {
  const auto rest = [](const RunIdentity& identity) {
    Schedule schedule;
    const auto text = identity.find(kSchedule);
    if (text != identity.end()) {
      google::protobuf::TextFormat::ParseFromString(text->second, &schedule);
    }
    schedule.clear_warmup_steps();
    schedule.clear_warmup_ratio();
    schedule.clear_decay_steps();
    schedule.clear_decay_ratio();
    return schedule.ShortDebugString();
  };
  if (Same(earlier, mine, kMaxSteps) || rest(earlier) != rest(mine)) return "";
  return absl::StrCat(kMaxSteps, ": ", ShownIn(earlier, kMaxSteps), " -> ",
                      ShownIn(mine, kMaxSteps),
                      " may be why, as a shorter run's warmup_steps and "
                      "decay_steps are scaled down with it");
}

}  // namespace

void SetMaxSteps(int64_t max_steps, RunIdentity* identity) {
  (*identity)[kMaxSteps] = absl::StrCat(max_steps);
}

absl::StatusOr<IdentifiedRun> IdentifyRun(const RunConfig& config,
                                          const RunParts& parts,
                                          int64_t max_steps) {
  IdentifiedRun run;
  RunIdentity& identity = run.identity;
  CAPSTAN_RETURN_IF_ERROR(
      AddData("train_data", config.train_data(), *parts.train_data, &identity));
  if (config.has_eval_data()) {
    CAPSTAN_RETURN_IF_ERROR(
        AddData("eval_data", config.eval_data(), *parts.eval_data, &identity));
  }
  for (int i = 0; i < config.eval_sets_size(); ++i) {
    CAPSTAN_RETURN_IF_ERROR(AddData(
        absl::StrCat(kEvalSets, config.eval_sets(i).name()),
        config.eval_sets(i).data(), *parts.eval_sets[i].reader, &identity));
  }
  if (parts.eval_tasks != nullptr) AddTasks(*parts.eval_tasks, &identity);
  for (const auto& [slot, any, paths] :
       {std::make_tuple("model", &config.model(), Paths::kElsewhere),
        std::make_tuple("objective", &config.objective(), Paths::kByContent),
        std::make_tuple("optimizer", &config.optimizer(), Paths::kByContent),
        std::make_tuple("precision", &config.precision(), Paths::kByContent)}) {
    CAPSTAN_RETURN_IF_ERROR(AddSlot(slot, *any, paths, &identity));
  }
  identity["precision"] = parts.precision_name;
  // Others all have one curve.
  if (parts.strategy != nullptr &&
      OwnCurveOf(*parts.strategy, parts.objective.get()).has_value()) {
    CAPSTAN_RETURN_IF_ERROR(
        AddSlot("strategy", config.strategy(), Paths::kByContent, &identity));
  }
  CAPSTAN_RETURN_IF_ERROR(AddModel(*parts.model, &identity));
  if (const Tokenizer* const tokenizer = parts.train_data->tokenizer()) {
    CAPSTAN_RETURN_IF_ERROR(AddTokenizer(*tokenizer, &identity));
  }
  if (parts.lora.has_value()) AddAdapter(*parts.lora, &identity);
  CAPSTAN_RETURN_IF_ERROR(AddBase(config, parts, &run));
  CAPSTAN_RETURN_IF_ERROR(
      AddFields(config.batch(), "batch", Paths::kAsWritten, &identity));
  CAPSTAN_RETURN_IF_ERROR(
      AddFields(config.train(), "train", Paths::kAsWritten, &identity));
  // As if it weren't set.
  if (config.train().max_grad_norm() == 0.0) identity.erase(kMaxGradNorm);
  SetMaxSteps(max_steps, &identity);
  identity[kSchedule] = config.schedule().ShortDebugString();
  return run;
}

bool MayHaveChanged(const Train& train, const std::string& name) {
  const auto& named = train.resume_with_changes();
  return std::any_of(named.begin(), named.end(), [&](const std::string& above) {
    return IsBelow(name, above);
  });
}

std::string HowToResume(const std::vector<std::string>& changed) {
  return absl::StrCat(
      "restore the old value, or, to continue with the new one, set "
      "train.resume_with_changes: [\"",
      absl::StrJoin(changed, "\", \""), "\"]");
}

absl::Status AddDefaults(const RunConfig& config, RunIdentity* identity) {
  std::vector<std::pair<std::string, const google::protobuf::Any*>> slots = {
      {"train_data", &config.train_data()}, {"eval_data", &config.eval_data()},
      {"model", &config.model()},           {"objective", &config.objective()},
      {"optimizer", &config.optimizer()},   {"precision", &config.precision()},
      {"strategy", &config.strategy()}};
  for (const EvalSet& set : config.eval_sets()) {
    slots.emplace_back(absl::StrCat(kEvalSets, set.name()), &set.data());
  }
  for (const auto& [slot, any] : slots) {
    if (any->type_url().empty()) continue;
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Message> message,
                             Unpack(*any));
    AddDefaultsOf(*message, slot, identity);
  }
  AddDefaultsOf(config.batch(), "batch", identity);
  AddDefaultsOf(config.train(), "train", identity);
  return absl::OkStatus();
}

IdentityChanges ChangesOf(const RunIdentity& earlier, const RunIdentity& mine,
                          int64_t optimizer_steps, const Train& train) {
  const std::set<std::string> names = NamesIn(earlier, mine);
  const std::string decides = DecidesWhatIsBest(names, train);
  const bool same_factors = SameFactors(earlier, mine, optimizer_steps);
  IdentityChanges changes;
  for (const std::string& name : names) {
    // CompareForgotten knows what they change.
    if (Same(earlier, mine, name) || IsForgottenRow(name)) continue;
    const std::string change = absl::StrCat(name, ": ", ShownIn(earlier, name),
                                            " -> ", ShownIn(mine, name));
    if (name == kMaxSteps) {
      if (same_factors || !Same(earlier, mine, kSchedule)) continue;
      changes.other_curve = true;
      changes.notes.push_back(
          absl::StrCat("WARNING: ", change, kChangesSchedule,
                       ", whose length it is: the learning rate goes "
                       "on along another curve than before"));
      continue;
    }
    const bool changes_nothing =
        (name == kSchedule && same_factors) ||
        (IsOfEvaluation(name) && EvaluationOf(name).first != decides);
    if (changes_nothing || MayHaveChanged(train, name)) {
      changes.notes.push_back(absl::StrCat(kGoesOnWithAnother, change));
      continue;
    }
    changes.refused.push_back(change);
    changes.names.push_back(name);
  }
  return changes;
}

absl::StatusOr<std::vector<std::string>> CompareIdentities(
    const std::string& checkpoint, const RunIdentity& earlier,
    const RunIdentity& mine, int64_t optimizer_steps, const Train& train) {
  IdentityChanges changes = ChangesOf(earlier, mine, optimizer_steps, train);
  const std::vector<std::string> misspelt =
      Misspelt(NamesIn(earlier, mine), mine, train);
  if (changes.refused.empty()) {
    for (const std::string& name : misspelt) {
      changes.notes.push_back(absl::StrCat("WARNING: ", name));
    }
    return changes.notes;
  }
  std::vector<std::string> what_to_do = {HowToResume(changes.names)};
  if (std::find(changes.names.begin(), changes.names.end(), kSchedule) !=
      changes.names.end()) {
    const std::string scaled = ScaledSchedule(earlier, mine);
    if (!scaled.empty()) what_to_do.insert(what_to_do.begin(), scaled);
  }
  what_to_do.insert(what_to_do.end(), misspelt.begin(), misspelt.end());
  return WithCode(absl::FailedPreconditionError(absl::StrCat(
                      "the run in ", checkpoint,
                      " isn't this one: ", absl::StrJoin(changes.refused, "; "),
                      ": ", absl::StrJoin(what_to_do, "; "))),
                  "run/changed");
}

}  // namespace capstan
