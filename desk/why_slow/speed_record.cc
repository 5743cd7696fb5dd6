// SPDX-License-Identifier: Apache-2.0
#include "desk/why_slow/speed_record.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/json_fields.h"
#include "desk/run_folder/run_record.h"
#include "host/config/load_config.h"
#include "host/config/run_config.pb.h"
#include "host/plugins/plugin_host.h"

namespace capstan::why_slow {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::FieldDescriptor;

// A larger number is none of a run's.
constexpr double kMostSteps = 1e15;

double Number(const Json& object, const char* key) {
  return NumberOf(object, key).value_or(0.0);
}

// Lines that aren't JSON objects, such as one that a killed process has left,
// are passed over.
template <typename Each>
void ForEachObject(const std::string& path, const Each& each) {
  ForEachLine(path, [&each](absl::string_view line) {
    const Json json = ParseJson<Json>(line);
    if (json.is_object()) each(json);
  });
}

// Of the newest process.
int64_t CountLines(const std::string& path) {
  int64_t lines = 0;
  ForEachLine(path, [&lines](absl::string_view line) {
    lines = absl::StrContains(line, "\"rank\"") ? 0 : lines + 1;
  });
  return lines;
}

RankRecord ReadRank(const std::string& path) {
  RankRecord rank;
  const int64_t half = CountLines(path) / 2;
  ForEachObject(path, [&rank, half](const Json& json) {
    if (IsRankFacts(json)) {
      rank = RankRecord();
      static_cast<RankFacts&>(rank) = RankFactsOf(json);
      return;
    }
    // No rank writes such a step.
    const double step = Number(json, "step");
    if (!(step >= 0.0 && step < kMostSteps)) return;
    const Times line = RankTimesOf(json);
    if (rank.lines == 0) {
      rank.first = line;
    } else {
      (rank.lines < half ? rank.early : rank.later).Add(line);
    }
    rank.all.Add(line);
    ++rank.lines;
  });
  return rank;
}

void ReadMetrics(const std::string& path, SpeedRecord* run) {
  double steps = 0.0;
  ForEachObject(path, [&](const Json& json) {
    if (!json.contains("loss") ||
        Number(json, "step") <= run->ranks.front().first_step) {
      return;
    }
    for (const auto& [key, value] : json.items()) {
      if (!absl::EndsWith(key, "_per_second")) continue;
      run->unit = key.substr(0, key.size() - sizeof("_per_second") + 1);
      run->tokens += Number(json, key.c_str()) * Number(json, "step_seconds");
    }
    run->bytes_sent += Number(json, "bytes_sent");
    ++steps;
  });
  if (steps == 0.0) return;
  run->tokens /= steps;
  run->bytes_sent /= steps;
}

Json ReadObject(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  Json json = text.ok() ? ParseJson<Json>(*text) : Json();
  return json.is_object() ? json : Json::object();
}

void ReadProfile(const std::string& path, SpeedRecord* run) {
  const Json profile = ReadObject(path);
  const auto rows = profile.find("rows");
  if (rows == profile.end() || !rows->is_array()) return;
  for (const Json& row : *rows) {
    const std::string phase = TextOf(row, "phase");
    if (phase != "forward" && phase != "backward") continue;
    run->scopes.emplace_back(absl::StrCat(phase, ": ", TextOf(row, "name")),
                             Number(row, "seconds"));
  }
  std::sort(run->scopes.begin(), run->scopes.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr size_t kMost = 3;
  if (run->scopes.size() > kMost) run->scopes.resize(kMost);
}

// Integers of the model's message whose name says that they are widths.
void AddWidths(const google::protobuf::Message& model, Settings* settings) {
  for (const char* name : {"hidden_size", "intermediate_size", "vocab_size"}) {
    const FieldDescriptor* const field =
        SingleField(model, name, FieldDescriptor::TYPE_INT64);
    if (field == nullptr) continue;
    const int64_t value = model.GetReflection()->GetInt64(model, field);
    if (value > 0) settings->widths[name] = value;
  }
}

}  // namespace

absl::Status ReadSettings(const std::string& config_text,
                          const std::string& name, Settings* settings) {
  PluginHost host({});
  const ConfigContext context = DefaultConfigContext(&host);
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                           ParseConfig(config_text, name, context));
  const RunConfig& config = loaded.config;
  settings->micro_batch_size =
      std::max<double>(1.0, config.batch().micro_batch_size());
  settings->global_batch_size =
      static_cast<double>(config.batch().global_batch_size());
  settings->sequence_parallel =
      std::max<double>(1.0, config.train().sequence_parallel());
  settings->eval_every = static_cast<double>(config.train().eval_every());
  settings->save_every = static_cast<double>(config.train().save_every());
  settings->saves_in_foreground = config.train().saving() == Train::FOREGROUND;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<google::protobuf::Message> model,
      Unpack(config.model()));
  AddWidths(*model, settings);
  return absl::OkStatus();
}

absl::StatusOr<SpeedRecord> ReadSpeedRecord(const std::string& folder) {
  SpeedRecord run;
  run.folder = folder;
  if (!PathExists(folder)) {
    return absl::NotFoundError(absl::StrCat(folder, ": no such folder"));
  }
  for (const auto& [number, path] : RankFiles(folder)) {
    RankRecord rank = ReadRank(path);
    if (rank.all.steps > 0) run.ranks.push_back(std::move(rank));
  }
  if (run.ranks.empty()) {
    return absl::NotFoundError(absl::StrCat(
        folder,
        "/ranks has no record of a step: name the folder of a run that "
        "has done some with this trainer"));
  }
  // Of ranks that the run no longer has.
  const int size = run.ranks.front().world_size;
  while (run.ranks.size() > 1 && run.ranks.back().rank >= size) {
    run.ranks.pop_back();
  }
  ReadMetrics(folder + "/metrics.jsonl", &run);
  run.parameters = Number(ReadObject(folder + "/summary.json"), "parameters");
  ReadProfile(folder + "/profile.json", &run);
  const absl::StatusOr<std::string> config =
      ReadWholeFile(folder + "/config.pbtxt");
  // Without them, less can be said.
  if (config.ok()) {
    ReadSettings(*config, folder + "/config.pbtxt", &run.settings)
        .IgnoreError();
  }
  return run;
}

}  // namespace capstan::why_slow
