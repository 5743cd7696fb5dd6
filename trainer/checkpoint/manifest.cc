// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/state_kinds.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormatVersion = 2;
constexpr char kCrcKey[] = "crc32c";

absl::Status Missing(const std::string& kind, const std::string& parameter,
                     int64_t element) {
  return WithCode(
      absl::DataLossError(absl::StrFormat("element %d of %s of '%s' is missing",
                                          element, kind, parameter)),
      "checkpoint/damaged");
}

// JSON has no NaN or infinity, which a last loss may be. Finite numbers
// round-trip exactly.
Json DoubleToJson(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double DoubleFromJson(const Json& value) {
  if (!value.is_string()) return value.get<double>();
  const std::string text = value.get<std::string>();
  const double infinity = std::numeric_limits<double>::infinity();
  if (text == "inf") return infinity;
  if (text == "-inf") return -infinity;
  return std::numeric_limits<double>::quiet_NaN();
}

// Calls visit(key, number) for each number that every run's state has.
template <typename State, typename Visit>
void ForEachNumber(State& state, const Visit& visit) {
  visit("step", state.step);
  visit("optimizer_steps", state.optimizer_steps);
  visit("samples", state.samples);
  visit("tokens", state.tokens);
  visit("trained_tokens", state.trained_tokens);
  visit("padding", state.padding);
  visit("seed", state.seed);
  visit("data_size", state.data_size);
  visit("data_shuffle", state.data_shuffle);
  visit("data_group", state.data_group);
  visit("global_batch_size", state.global_batch_size);
  visit("frozen_crc32c", state.frozen_crc32c);
  visit("eval_step", state.eval_step);
  visit("best_eval_loss", state.best_eval_loss);
  visit("best_step", state.best_step);
  visit("evals_without_better", state.evals_without_better);
  visit("loss_scale", state.loss_scale);
  visit("loss_scale_good_steps", state.loss_scale_good_steps);
  visit("last_loss", state.last_loss);
  visit("first_loss", state.first_loss);
}

Json TrainStateToJson(const TrainState& state) {
  Json json;
  ForEachNumber(state, [&json](const char* key, const auto& number) {
    if constexpr (std::is_same_v<decltype(number), const double&>) {
      json[key] = DoubleToJson(number);
    } else {
      json[key] = number;
    }
  });
  // Only of runs that ask for it.
  if (state.initial_crc32c != 0) json["initial_crc32c"] = state.initial_crc32c;
  if (!state.best_metric.empty()) json["best_metric"] = state.best_metric;
  if (!state.recent_losses.empty()) {
    json["recent_losses"] = state.recent_losses;
    json["spikes_in_a_row"] = state.spikes_in_a_row;
  }
  if (state.times_back > 0) {
    json["back_to"] = state.back_to;
    json["times_back"] = state.times_back;
  }
  if (!state.bad_samples.empty()) json["bad_samples"] = state.bad_samples;
  if (!state.bad_eval_samples.empty()) {
    json["bad_eval_samples"] = state.bad_eval_samples;
  }
  return json;
}

// Whether each number that isn't a loss fits an int64: converting 1e99 to an
// integer is undefined.
bool NumbersFit(const Json& json) {
  constexpr double kMost = 9e18;
  for (const auto& [key, value] : json.items()) {
    const bool may_be_any = key == "best_eval_loss" || key == "loss_scale" ||
                            key == "last_loss" || key == "first_loss" ||
                            key == "recent_losses";
    if (value.is_number_float() && !may_be_any &&
        !(std::fabs(value.get<double>()) < kMost)) {
      return false;
    }
    if (value.is_structured() && !may_be_any && !NumbersFit(value)) {
      return false;
    }
  }
  return true;
}

// Throws Json's exceptions, which name the place. Returns null for JSON that is
// nested deeper than a manifest: Json's parser follows any depth, and its
// values are freed and written by recursion.
Json ParseManifestJson(absl::string_view text) {
  if (JsonDepth(text) > kMostJsonDepth) return nullptr;
  Json json = Json::parse(text.begin(), text.end());
  return NumbersFit(json) ? json : Json();
}

TrainState TrainStateFromJson(const Json& json) {
  TrainState state;
  ForEachNumber(state, [&json](const char* key, auto& number) {
    const Json& value = json.at(key);
    if constexpr (std::is_same_v<decltype(number), double&>) {
      number = DoubleFromJson(value);
    } else {
      value.get_to(number);
    }
  });
  if (json.contains("initial_crc32c")) {
    state.initial_crc32c = json.at("initial_crc32c").get<uint32_t>();
  }
  if (json.contains("recent_losses")) {
    state.recent_losses = json.at("recent_losses").get<std::vector<double>>();
    state.spikes_in_a_row = json.at("spikes_in_a_row").get<int64_t>();
  }
  if (json.contains("best_metric")) {
    state.best_metric = json.at("best_metric").get<std::string>();
  }
  if (json.contains("times_back")) {
    state.back_to = json.at("back_to").get<int64_t>();
    state.times_back = json.at("times_back").get<int64_t>();
  }
  for (const auto& [name, samples] :
       {std::make_pair("bad_samples", &state.bad_samples),
        std::make_pair("bad_eval_samples", &state.bad_eval_samples)}) {
    if (!json.contains(name)) continue;
    *samples = json.at(name).get<std::vector<int64_t>>();
  }
  return state;
}

void StateToJson(const std::vector<ManifestState>& state, Json* json) {
  Json names = Json::array();
  Json specs = Json::array();
  for (const ManifestState& kind : state) {
    names.push_back(kind.name);
    // The name suffices if all else is as for the masters.
    if (kind == ManifestState{kind.name}) continue;
    specs.push_back({{"name", kind.name},
                     {"dtype", kind.dtype},
                     {"block", kind.block},
                     {"per_parameter", kind.per_parameter}});
    if (!kind.numels.empty()) specs.back()["numels"] = kind.numels;
  }
  (*json)["state_names"] = std::move(names);
  if (!specs.empty()) (*json)["state_specs"] = std::move(specs);
}

std::vector<ManifestState> StateFromJson(const Json& json) {
  std::vector<ManifestState> state;
  for (const Json& name : json.at("state_names")) {
    state.push_back({name.get<std::string>()});
  }
  if (!json.contains("state_specs")) return state;
  for (const Json& spec : json.at("state_specs")) {
    for (ManifestState& kind : state) {
      if (kind.name != spec.at("name").get<std::string>()) continue;
      kind.dtype = spec.at("dtype").get<std::string>();
      kind.block = std::max<int64_t>(1, spec.at("block").get<int64_t>());
      kind.per_parameter = spec.at("per_parameter").get<int64_t>();
      if (spec.contains("numels")) {
        kind.numels = spec.at("numels").get<std::map<std::string, int64_t>>();
      }
    }
  }
  return state;
}

std::string CrcsToText(const std::vector<uint32_t>& crcs) {
  return absl::StrJoin(crcs, " ", [](std::string* out, uint32_t crc) {
    absl::StrAppendFormat(out, "%08x", crc);
  });
}

// Skips what doesn't parse; the count then reveals it.
std::vector<uint32_t> CrcsFromText(const std::string& text) {
  std::vector<uint32_t> crcs;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    uint32_t crc = 0;
    if (absl::SimpleHexAtoi(word, &crc)) crcs.push_back(crc);
  }
  return crcs;
}

Json FileToJson(const ManifestFile& file) {
  Json ranges = Json::array();
  for (const ManifestRange& range : file.ranges) {
    ranges.push_back({{"kind", range.kind},
                      {"parameter", range.parameter},
                      {"begin", range.begin},
                      {"length", range.length},
                      {"dtype", range.dtype},
                      {kCrcKey, CrcsToText(range.crc32c)}});
  }
  return {{"file", file.name},
          {"bytes", file.bytes},
          {"ranges", std::move(ranges)}};
}

ManifestFile FileFromJson(const Json& json) {
  ManifestFile file;
  file.name = json.at("file").get<std::string>();
  file.bytes = json.at("bytes").get<int64_t>();
  for (const Json& range : json.at("ranges")) {
    file.ranges.push_back({range.at("kind").get<std::string>(),
                           range.at("parameter").get<std::string>(),
                           range.at("begin").get<int64_t>(),
                           range.at("length").get<int64_t>(),
                           CrcsFromText(range.at(kCrcKey).get<std::string>()),
                           range.at("dtype").get<std::string>()});
  }
  return file;
}

// Throws Json::exception.
Manifest FromJson(const Json& json) {
  Manifest manifest;
  manifest.train_state = TrainStateFromJson(json.at("train_state"));
  manifest.world_size = json.at("world_size").get<int>();
  manifest.config_text = json.at("config").get<std::string>();
  manifest.identity = json.at("identity").get<RunIdentity>();
  manifest.state = StateFromJson(json);
  for (const Json& parameter : json.at("parameters")) {
    manifest.parameters.push_back(
        {parameter.at("name").get<std::string>(),
         parameter.at("shape").get<std::vector<int64_t>>(),
         parameter.at("trainable").get<bool>()});
  }
  for (const Json& file : json.at("files")) {
    manifest.files.push_back(FileFromJson(file));
  }
  if (json.contains("texts")) {
    manifest.texts = json.at("texts").get<std::map<std::string, std::string>>();
  }
  return manifest;
}

// Number of elements by parameter name.
absl::StatusOr<std::map<std::string, int64_t>> Numels(
    const Manifest& manifest) {
  std::map<std::string, int64_t> numels;
  for (const ManifestParameter& parameter : manifest.parameters) {
    int64_t numel = 1;
    for (int64_t d : parameter.shape) {
      if (d < 0 || __builtin_mul_overflow(numel, d, &numel)) {
        return absl::InvalidArgumentError(
            absl::StrCat("shape of '", parameter.name, "' is impossible"));
      }
    }
    numels[parameter.name] = numel;
  }
  return numels;
}

const ManifestState& StateOf(const Manifest& manifest,
                             const std::string& kind) {
  static const ManifestState* const plain = new ManifestState();
  for (const ManifestState& state : manifest.state) {
    if (state.name == kind) return state;
  }
  return *plain;
}

// The manifest's checksum, over everything but itself.
std::string Crc(const Json& json) {
  Json rest = json;
  rest.erase(kCrcKey);
  return TextChecksum(rest.dump());
}

// No run counts further: 2^53, up to which a double is exact.
constexpr int64_t kMostCounted = int64_t{1} << 53;

// A run that continued from impossible numbers would search its data forever,
// or overflow.
absl::Status CheckTrainState(const TrainState& state) {
  absl::Status status;
  ForEachNumber(state, [&](absl::string_view key, const auto& count) {
    if constexpr (std::is_same_v<decltype(count), const int64_t&>) {
      // Negative: none.
      const bool may_be_none = key == "eval_step" || key == "best_step";
      if (count <= kMostCounted && (count >= 0 || may_be_none)) return;
      status.Update(absl::InvalidArgumentError(
          absl::StrFormat("%s is %d, which no run reaches", key, count)));
    }
  });
  return status;
}

absl::Status CheckPlainName(const std::string& name) {
  if (!name.empty() && name.find('/') == std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' isn't a plain file name"));
}

absl::Status CheckPluginRange(const ManifestFile& file,
                              const ManifestRange& range,
                              std::set<std::string>* found) {
  if (range.begin == 0 && range.length > 0 && range.length <= file.bytes &&
      found->insert(range.kind).second) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%d bytes from byte %d of %s are not all of it",
                      range.length, range.begin, range.kind));
}

absl::Status CheckVersion(const std::string& path, int version) {
  if (version == kFormatVersion) return absl::OkStatus();
  return WithCode(
      absl::FailedPreconditionError(absl::StrFormat(
          "%s: was saved by %s trainer: format_version is %d, this one reads "
          "%d; "
          "resume with that trainer, or start anew in another output_dir",
          path, version < kFormatVersion ? "an older" : "a newer", version,
          kFormatVersion)),
      "checkpoint/version");
}

}  // namespace

bool IsPluginKind(const std::string& kind) {
  return absl::StartsWith(WithoutRank(kind), "plugin.");
}

int64_t ManifestState::Numel(int64_t parameter_numel) const {
  return per_parameter > 0
             ? per_parameter
             : parameter_numel / block + (parameter_numel % block != 0 ? 1 : 0);
}

int64_t ManifestState::NumelOf(const std::string& parameter,
                               int64_t parameter_numel) const {
  const auto own = numels.find(parameter);
  return own != numels.end() ? std::max<int64_t>(0, own->second)
                             : Numel(parameter_numel);
}

bool ManifestState::operator==(const ManifestState& other) const {
  return name == other.name && dtype == other.dtype && block == other.block &&
         per_parameter == other.per_parameter && numels == other.numels;
}

std::string ManifestRange::Key() const {
  return absl::StrCat(kind, "/", parameter, "/", begin);
}

std::string ManifestToJson(const Manifest& manifest) {
  Json parameters = Json::array();
  for (const ManifestParameter& parameter : manifest.parameters) {
    parameters.push_back({{"name", parameter.name},
                          {"shape", parameter.shape},
                          {"trainable", parameter.trainable}});
  }
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back(FileToJson(file));
  }
  Json json = {{"format_version", kFormatVersion},
               {"train_state", TrainStateToJson(manifest.train_state)},
               {"world_size", manifest.world_size},
               {"config", manifest.config_text},
               {"identity", manifest.identity}};
  StateToJson(manifest.state, &json);
  json["parameters"] = std::move(parameters);
  json["files"] = std::move(files);
  if (!manifest.texts.empty()) json["texts"] = manifest.texts;
  json[kCrcKey] = Crc(json);
  return json.dump(1) + "\n";
}

std::string TrainStateText(const TrainState& state) {
  return TrainStateToJson(state).dump();
}

absl::StatusOr<TrainState> TrainStateFromText(absl::string_view text,
                                              const std::string& path) {
  try {
    return TrainStateFromJson(ParseManifestJson(text));
  } catch (const Json::exception& e) {
    return DamagedError(path, e.what());
  }
}

absl::StatusOr<Manifest> ManifestFromJson(absl::string_view text,
                                          const std::string& path) {
  try {
    const Json json = ParseManifestJson(text);
    CAPSTAN_RETURN_IF_ERROR(
        CheckVersion(path, json.at("format_version").get<int>()));
    if (json.at(kCrcKey) != Crc(json)) {
      return DamagedError(path, "its CRC-32C isn't what it says");
    }
    return FromJson(json);
  } catch (const Json::exception& e) {
    return DamagedError(path, e.what());
  }
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestFile);
  if (!PathExists(path)) {
    return WithCode(
        absl::NotFoundError(absl::StrCat(
            folder, " isn't a whole checkpoint: it has no ", kManifestFile)),
        "checkpoint/none");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(Manifest manifest, ManifestFromJson(text, path));
  const absl::Status status = CheckManifest(manifest);
  if (!status.ok()) return DamagedError(path, status.message());
  CAPSTAN_RETURN_IF_ERROR(CheckStepOfName(folder, manifest.train_state.step));
  for (const auto& [name, checksum] : manifest.texts) {
    const std::string beside = absl::StrCat(folder, "/", name);
    const absl::StatusOr<std::string> content = ReadWholeFile(beside);
    if (!content.ok()) {
      return DamagedError(
          path, absl::StrCat("of its files ", content.status().message()));
    }
    if (TextChecksum(*content) != checksum) {
      return DamagedError(beside, "its CRC-32C isn't the manifest's");
    }
  }
  return manifest;
}

absl::Status CheckManifest(const Manifest& manifest) {
  CAPSTAN_RETURN_IF_ERROR(CheckTrainState(manifest.train_state));
  CAPSTAN_ASSIGN_OR_RETURN(const auto numels, Numels(manifest));
  for (const auto& [name, checksum] : manifest.texts) {
    CAPSTAN_RETURN_IF_ERROR(CheckPlainName(name));
  }
  std::set<std::string> plugin_kinds;
  for (const ManifestFile& file : manifest.files) {
    CAPSTAN_RETURN_IF_ERROR(CheckPlainName(file.name));
    for (const ManifestRange& range : file.ranges) {
      if (IsPluginKind(range.kind)) {
        CAPSTAN_RETURN_IF_ERROR(CheckPluginRange(file, range, &plugin_kinds));
        continue;
      }
      const auto found = numels.find(range.parameter);
      const int64_t numel = found == numels.end()
                                ? 0
                                : StateOf(manifest, range.kind)
                                      .NumelOf(range.parameter, found->second);
      if (range.begin < 0 || range.length <= 0 || range.begin > numel ||
          range.length > numel - range.begin) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%d elements from element %d of '%s' are not in that parameter",
            range.length, range.begin, range.parameter));
      }
    }
  }
  const RangeIndex index(manifest);
  for (const ManifestParameter& parameter : manifest.parameters) {
    if (!parameter.trainable) continue;
    const int64_t numel = numels.at(parameter.name);
    CAPSTAN_RETURN_IF_ERROR(
        index.CheckWhole(kMasterKind, parameter.name, numel));
    for (const ManifestState& kind : manifest.state) {
      CAPSTAN_RETURN_IF_ERROR(index.CheckWhole(
          kind.name, parameter.name, kind.NumelOf(parameter.name, numel)));
    }
  }
  return absl::OkStatus();
}

std::string TextChecksum(absl::string_view text) {
  return absl::StrFormat("%08x", Crc32c(text));
}

std::string ManifestFileToJson(const ManifestFile& file) {
  return FileToJson(file).dump();
}

absl::StatusOr<ManifestFile> ManifestFileFromJson(absl::string_view text,
                                                  const std::string& path) {
  try {
    return FileFromJson(ParseManifestJson(text));
  } catch (const Json::exception& e) {
    return WithCode(
        absl::DataLossError(absl::StrCat(path, ": is damaged: ", e.what())),
        "checkpoint/damaged");
  }
}

absl::StatusOr<ManifestFile> ReadManifestFile(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  return ManifestFileFromJson(text, path);
}

absl::Status DamagedError(const std::string& path, absl::string_view how) {
  return absl::DataLossError(
      absl::StrCat(path, ": is damaged: ", how, kWhatToDo, ", or remove ",
                   path.substr(0, path.rfind('/')),
                   " to resume from the checkpoint before"));
}

RangeIndex::RangeIndex(const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    for (const ManifestRange& range : file.ranges) {
      pieces_[{range.kind, range.parameter}].push_back(
          {&file, &range, range.begin, range.length});
    }
  }
  for (auto& [key, pieces] : pieces_) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  }
}

absl::StatusOr<std::vector<RangeIndex::Piece>> RangeIndex::Cover(
    const std::string& kind, const std::string& parameter, int64_t begin,
    int64_t length) const {
  std::vector<Piece> cover;
  const int64_t end = begin + length;
  const auto found = pieces_.find({kind, parameter});
  while (begin < end) {
    const Piece* piece = nullptr;
    if (found != pieces_.end()) {
      const auto after = std::upper_bound(
          found->second.begin(), found->second.end(), begin,
          [](int64_t value, const Piece& p) { return value < p.begin; });
      if (after != found->second.begin()) piece = &*(after - 1);
    }
    if (piece == nullptr || piece->begin + piece->length <= begin) {
      return Missing(kind, parameter, begin);
    }
    const int64_t stop = std::min(end, piece->begin + piece->length);
    cover.push_back({piece->file, piece->range, begin, stop - begin});
    begin = stop;
  }
  return cover;
}

absl::Status RangeIndex::CheckWhole(const std::string& kind,
                                    const std::string& parameter,
                                    int64_t numel) const {
  const auto found = pieces_.find({kind, parameter});
  int64_t next = 0;
  const Piece* before = nullptr;
  if (found != pieces_.end()) {
    for (const Piece& piece : found->second) {
      if (piece.begin > next) return Missing(kind, parameter, next);
      if (piece.begin < next) {
        return absl::DataLossError(absl::StrFormat(
            "element %d of %s of '%s' is stored twice, in %s and %s",
            piece.begin, kind, parameter, before->file->name,
            piece.file->name));
      }
      next += piece.length;
      before = &piece;
    }
  }
  if (next < numel) return Missing(kind, parameter, next);
  return absl::OkStatus();
}

}  // namespace capstan
