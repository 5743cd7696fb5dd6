// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/machine.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/metrics/console.h"
#include "trainer/profile/gpu_specs.h"

namespace capstan::fit {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Wrong(const std::string& path, absl::string_view key,
                   absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", key, " ", problem));
}

// What is beyond is a slip.
constexpr double kLeast = 1e-9;
constexpr double kMost = 1e15;
constexpr int64_t kMostCount = 1000000;
constexpr int64_t kMostRanks = 100000;

absl::Status ReadNumber(const std::string& path, const Json& json,
                        const char* key, double* number, double least = 0.0,
                        double most = 1e9) {
  if (!json.contains(key)) return absl::OkStatus();
  const Json& value = json[key];
  if (!value.is_number() || !(value.get<double>() >= least) ||
      value.get<double>() > most) {
    return Wrong(path, key,
                 absl::StrCat("must be a number from ", least, " to ", most,
                              ", is ", JsonText(value)));
  }
  *number = value.get<double>();
  return absl::OkStatus();
}

absl::Status ReadCount(const std::string& path, const Json& json,
                       const char* key, int* count) {
  if (!json.contains(key)) return absl::OkStatus();
  const absl::optional<int64_t> value = JsonInteger(json[key]);
  if (!value.has_value() || *value < 1 || *value > kMostCount) {
    return Wrong(path, key,
                 absl::StrCat("must be a whole number of at least 1, is ",
                              JsonText(json[key])));
  }
  *count = static_cast<int>(*value);
  return absl::OkStatus();
}

// "64GiB", or a number of bytes.
absl::Status ReadBytes(const std::string& path, const Json& json,
                       const char* key, int64_t* bytes) {
  if (!json.contains(key)) return absl::OkStatus();
  const Json& value = json[key];
  if (value.is_string()) {
    const auto read = BytesFromText(value.get<std::string>());
    if (!read.ok()) return Wrong(path, key, read.status().message());
    *bytes = *read;
    return absl::OkStatus();
  }
  const absl::optional<int64_t> number = JsonInteger(value);
  if (!number.has_value() || *number <= 0) {
    return Wrong(path, key,
                 absl::StrCat("must be an amount of memory such as \"64GiB\", "
                              "is ",
                              JsonText(value)));
  }
  *bytes = *number;
  return absl::OkStatus();
}

absl::Status CheckKeys(const std::string& path, const std::string& within,
                       const Json& json, const std::set<std::string>& known) {
  for (const auto& [key, value] : json.items()) {
    if (known.count(key) > 0) continue;
    std::string all;
    for (const std::string& one : known) {
      absl::StrAppend(&all, all.empty() ? "" : ", ", one);
    }
    return Wrong(path, absl::StrCat(within, key),
                 absl::StrCat("isn't known; there are: ", all));
  }
  return absl::OkStatus();
}

// doctor's list of all-reduces among `ranks`.
absl::Status ReadTransfers(const std::string& path, const Json& list,
                           Machine* machine) {
  if (!list.is_array()) return Wrong(path, "all_reduce", "must be a list");
  machine->sends.clear();
  for (const Json& one : list) {
    double bytes = 0.0;
    double bus = 0.0;
    SendTime time;
    CAPSTAN_RETURN_IF_ERROR(ReadNumber(path, one, "bytes", &bytes, 0.0, kMost));
    CAPSTAN_RETURN_IF_ERROR(ReadNumber(path, one, "seconds", &time.seconds));
    CAPSTAN_RETURN_IF_ERROR(
        ReadNumber(path, one, "bus_bytes_per_second", &bus, 0.0, kMost));
    if (bytes <= 0.0 || time.seconds <= 0.0 || bus <= 0.0) {
      return Wrong(path, "all_reduce",
                   "must have bytes, seconds and bus_bytes_per_second as "
                   "`doctor --json` prints them");
    }
    time.sent = bus * time.seconds;
    machine->sends.push_back(time);
  }
  return absl::OkStatus();
}

// What `doctor --json` has printed.
absl::Status ReadDoctor(const std::string& path, const Json& json,
                        Machine* machine) {
  machine->hosts = std::max<int>(1, static_cast<int>(json["hosts"].size()));
  int all = 0;
  CAPSTAN_RETURN_IF_ERROR(ReadCount(path, json, "ranks", &all));
  if (all > 0 && all % machine->hosts != 0) {
    return Wrong(path, "ranks",
                 absl::StrCat("is ", all, ", which ", machine->hosts,
                              " hosts can't share equally; run doctor with as "
                              "many on each"));
  }
  if (all > 0) machine->ranks = all / machine->hosts;
  CAPSTAN_RETURN_IF_ERROR(ReadBytes(path, json, "memory", &machine->memory));
  if (json.contains("gpu") && json["gpu"].is_string()) {
    const GpuSpecs* const specs = FindGpuSpecs(json["gpu"].get<std::string>());
    if (specs == nullptr) {
      return Wrong(path, "gpu",
                   absl::StrCat("is ", JsonText(json["gpu"]),
                                ", of which no data sheet is known; describe "
                                "the machine with the nearest of ",
                                GpuKeys()));
    }
    machine->gpu = specs->key;
    CAPSTAN_RETURN_IF_ERROR(
        ReadBytes(path, json, "gpu_memory", &machine->gpu_memory));
  }
  return ReadTransfers(path, json.value("all_reduce", Json::array()), machine);
}

absl::Status ReadLink(const std::string& path, const Json& link,
                      Machine* machine) {
  if (!link.is_object()) {
    return Wrong(path, "link",
                 "must be an object: {\"gbit\": 10, \"latency_us\": 30}");
  }
  CAPSTAN_RETURN_IF_ERROR(
      CheckKeys(path, "link.", link, {"gbit", "latency_us"}));
  CAPSTAN_RETURN_IF_ERROR(
      ReadNumber(path, link, "gbit", &machine->gbit, kLeast));
  return ReadNumber(path, link, "latency_us", &machine->latency_us);
}

absl::Status ReadGpu(const std::string& path, const Json& json,
                     Machine* machine) {
  if (json.contains("gpu")) {
    const std::string key =
        json["gpu"].is_string() ? json["gpu"].get<std::string>() : "";
    const GpuSpecs* const specs = FindGpuSpecs(key);
    if (specs == nullptr) {
      return Wrong(path, "gpu",
                   absl::StrCat("must be one of ", GpuKeys(), ", is ",
                                JsonText(json["gpu"])));
    }
    machine->gpu = specs->key;
    machine->gpu_memory = static_cast<int64_t>(specs->memory);
  }
  if (json.contains("gpu_memory") && machine->gpu.empty()) {
    return Wrong(path, "gpu_memory", "needs gpu, which says what GPU it is of");
  }
  return ReadBytes(path, json, "gpu_memory", &machine->gpu_memory);
}

// Of `told`, which fit wrote, what `machine` lacks, and all steps.
absl::Status AddTold(const std::string& path, Machine told, Machine* machine) {
  if (machine->here) {
    *machine = std::move(told);
    return absl::OkStatus();
  }
  if (!machine->measured_run.empty() &&
      machine->measured_run != told.measured_run) {
    return Wrong(path, "measured_run",
                 absl::StrCat("is ", told.measured_run, ", and ",
                              machine->measured_run, " in a file before"));
  }
  const auto fill = [](const auto& value, auto* lacking) {
    if (*lacking == std::decay_t<decltype(value)>()) *lacking = value;
  };
  if (machine->gpu.empty() && !told.gpu.empty()) {
    machine->gpu_memory = told.gpu_memory;
  }
  fill(told.gpu, &machine->gpu);
  fill(told.ranks, &machine->ranks);
  fill(told.memory, &machine->memory);
  fill(told.tflops, &machine->tflops);
  fill(told.price_per_hour, &machine->price_per_hour);
  fill(told.measured_run, &machine->measured_run);
  machine->measured.insert(machine->measured.end(), told.measured.begin(),
                           told.measured.end());
  return absl::OkStatus();
}

// One of the steps that AsJson has written.
absl::StatusOr<Measured> ReadMeasured(const std::string& path,
                                      const Json& json) {
  Measured one;
  if (!json.is_object()) {
    return Wrong(path, "measured", "must be a list of objects");
  }
  std::set<std::string> known;
  const Json example = AsJson(one);
  for (const auto& [key, value] : example.items()) known.insert(key);
  CAPSTAN_RETURN_IF_ERROR(CheckKeys(path, "measured.", json, known));
  for (const auto& [key, value] : json.items()) {
    const bool text = example[key].is_string();
    if (text ? value.is_string()
             : value.is_number() && value.get<double>() >= 0.0 &&
                   value.get<double>() <= kMost) {
      continue;
    }
    return Wrong(path, absl::StrCat("measured.", key),
                 absl::StrCat(text ? "must be text, is "
                                   : "must be a number from 0 to 1e+15, is ",
                              JsonText(value)));
  }
  for (const char* key :
       {"hosts", "ranks", "micro_batch_size", "accumulation"}) {
    int count = 0;
    CAPSTAN_RETURN_IF_ERROR(
        ReadCount(absl::StrCat(path, ": measured"), json, key, &count));
  }
  JsonKeys keys(absl::StrCat(path, ": measured"), json);
  one.hosts = static_cast<int>(keys.Int("hosts", 1));
  one.ranks = static_cast<int>(keys.Int("ranks", absl::nullopt));
  one.samples = keys.Int("micro_batch_size", absl::nullopt);
  one.accumulation = keys.Int("accumulation", absl::nullopt);
  one.seconds = keys.Double("seconds", 0.0);
  one.low = keys.Double("low", one.seconds);
  one.high = keys.Double("high", one.seconds);
  one.exposed = keys.Double("exposed_seconds", 0.0);
  one.collectives = keys.Double("collectives", 0.0);
  one.sent = keys.Double("bytes_sent", 0.0);
  one.updated = keys.Double("updated", 0.0);
  one.others = keys.Double("others", 0.0);
  one.process = keys.Int("process", 0);
  one.planned = keys.Int("planned", 0);
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  one.gpu = json.value("gpu", "");
  one.strategy = json.value("strategy", "");
  one.checkpointing = json.value("activation_checkpointing", "NONE");
  if (!(one.seconds >= kLeast) || one.seconds > 1e9) {
    return Wrong(path, "measured", "must have seconds from 1e-09 to 1e+09");
  }
  if (one.low > one.seconds || one.high < one.seconds ||
      one.exposed > one.seconds) {
    return Wrong(path, "measured",
                 "must have seconds between low and high, and no more "
                 "exposed_seconds");
  }
  return one;
}

}  // namespace

bool SameSettings(const Measured& a, const Measured& b) {
  return a.hosts == b.hosts && a.ranks == b.ranks && a.strategy == b.strategy &&
         a.checkpointing == b.checkpointing && a.samples == b.samples &&
         a.accumulation == b.accumulation;
}

absl::Status ReadMachineJson(const std::string& path, const Json& json,
                             Machine* machine) {
  if (json.contains("hosts") && json["hosts"].is_array()) {
    machine->here = false;
    machine->name = path;
    return ReadDoctor(path, json, machine);
  }
  // fit's own output has it as a part.
  if (json.contains("machine") && json["machine"].is_object()) {
    Machine told;
    CAPSTAN_RETURN_IF_ERROR(ReadMachineJson(path, json["machine"], &told));
    return AddTold(path, std::move(told), machine);
  }
  CAPSTAN_RETURN_IF_ERROR(CheckKeys(
      path, "", json,
      {"name", "hosts", "ranks", "memory", "gpu", "gpu_memory", "tflops",
       "link", "all_reduce", "price_per_hour", "measured", "measured_run"}));
  for (const char* key : {"name", "measured_run"}) {
    if (!json.contains(key)) continue;
    const std::string text =
        json[key].is_string() ? json[key].get<std::string>() : "";
    if (text.empty() || PrintableText(text) != text ||
        text.find('\n') != text.npos) {
      return Wrong(
          path, key,
          absl::StrCat("must be a line of text, is ", JsonText(json[key])));
    }
  }
  machine->here = false;
  machine->name = json.contains("name") && json["name"].is_string()
                      ? json["name"].get<std::string>()
                      : path;
  CAPSTAN_RETURN_IF_ERROR(ReadCount(path, json, "hosts", &machine->hosts));
  CAPSTAN_RETURN_IF_ERROR(ReadCount(path, json, "ranks", &machine->ranks));
  CAPSTAN_RETURN_IF_ERROR(ReadBytes(path, json, "memory", &machine->memory));
  CAPSTAN_RETURN_IF_ERROR(ReadGpu(path, json, machine));
  CAPSTAN_RETURN_IF_ERROR(
      ReadNumber(path, json, "tflops", &machine->tflops, kLeast));
  CAPSTAN_RETURN_IF_ERROR(
      ReadNumber(path, json, "price_per_hour", &machine->price_per_hour));
  if (json.contains("link")) {
    CAPSTAN_RETURN_IF_ERROR(ReadLink(path, json["link"], machine));
  }
  if (json.contains("all_reduce")) {
    CAPSTAN_RETURN_IF_ERROR(ReadTransfers(path, json["all_reduce"], machine));
  }
  if (json.contains("measured")) {
    CAPSTAN_ASSIGN_OR_RETURN(machine->measured,
                             MeasuredOf(path, json["measured"]));
    // In a description they are of what it describes.
    for (size_t i = 0; i < machine->measured.size(); ++i) {
      if (!json["measured"][i].contains("gpu")) {
        machine->measured[i].gpu = machine->gpu;
      }
    }
    machine->measured_run = json.value("measured_run", "");
  }
  return absl::OkStatus();
}

absl::Status ReadMachine(const std::string& path, Machine* machine) {
  if (PathExists(path) && !IsRegularFile(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": isn't a file; --machine reads one"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ParseObject(path, text));
  CAPSTAN_RETURN_IF_ERROR(ReadMachineJson(path, json, machine));
  if (int64_t{machine->hosts} * machine->ranks > kMostRanks) {
    return Wrong(path, "hosts",
                 absl::StrCat("and ranks are ", machine->hosts, " x ",
                              machine->ranks, "; fit answers for at most ",
                              kMostRanks, " ranks in all"));
  }
  return absl::OkStatus();
}

Json AsJson(const Measured& measured) {
  return {{"hosts", measured.hosts},
          {"ranks", measured.ranks},
          {"gpu", measured.gpu},
          {"strategy", measured.strategy},
          {"activation_checkpointing", measured.checkpointing},
          {"micro_batch_size", measured.samples},
          {"accumulation", measured.accumulation},
          {"seconds", measured.seconds},
          {"low", measured.low},
          {"high", measured.high},
          {"exposed_seconds", measured.exposed},
          {"collectives", measured.collectives},
          {"bytes_sent", measured.sent},
          {"updated", measured.updated},
          {"others", measured.others},
          {"process", measured.process},
          {"planned", measured.planned}};
}

absl::StatusOr<std::vector<Measured>> MeasuredOf(const std::string& path,
                                                 const Json& json) {
  std::vector<Measured> all;
  if (!json.is_array()) return Wrong(path, "measured", "must be a list");
  for (const Json& one : json) {
    CAPSTAN_ASSIGN_OR_RETURN(Measured measured, ReadMeasured(path, one));
    all.push_back(std::move(measured));
  }
  return all;
}

Json AsJson(const Machine& machine) {
  Json json = {{"name", machine.name},
               {"hosts", machine.hosts},
               {"ranks", machine.ranks}};
  if (machine.memory > 0) json["memory"] = machine.memory;
  if (!machine.gpu.empty()) {
    json["gpu"] = machine.gpu;
    json["gpu_memory"] = machine.gpu_memory;
  }
  if (machine.tflops > 0.0) json["tflops"] = machine.tflops;
  if (machine.gbit > 0.0) {
    json["link"] = {{"gbit", machine.gbit}, {"latency_us", machine.latency_us}};
  }
  if (!machine.sends.empty()) {
    json["all_reduce"] = Json::array();
    for (const SendTime& one : machine.sends) {
      json["all_reduce"].push_back(
          {{"bytes", one.sent},
           {"seconds", one.seconds},
           {"bus_bytes_per_second", one.sent / one.seconds}});
    }
  }
  if (machine.price_per_hour > 0.0) {
    json["price_per_hour"] = machine.price_per_hour;
  }
  if (!machine.measured.empty()) {
    if (!machine.measured_run.empty()) {
      json["measured_run"] = machine.measured_run;
    }
    json["measured"] = Json::array();
    for (const Measured& one : machine.measured) {
      json["measured"].push_back(AsJson(one));
    }
  }
  return json;
}

}  // namespace capstan::fit
