// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "plugins/sdk/status.h"
#include "trainer/checkpoint/file_util.h"

namespace capstan {

const char kMasterKind[] = "master";
const char kManifestFile[] = "manifest.json";

namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormatVersion = 1;

// JSON has no NaN or infinity, and a last loss may be one. Finite numbers are
// written with the digits that give them back exactly.
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

Json TrainStateToJson(const TrainState& state) {
  return {{"step", state.step},
          {"optimizer_steps", state.optimizer_steps},
          {"samples", state.samples},
          {"tokens", state.tokens},
          {"seed", state.seed},
          {"data_size", state.data_size},
          {"data_shuffle", state.data_shuffle},
          {"loss_scale", DoubleToJson(state.loss_scale)},
          {"loss_scale_good_steps", state.loss_scale_good_steps},
          {"last_loss", DoubleToJson(state.last_loss)}};
}

TrainState TrainStateFromJson(const Json& json) {
  TrainState state;
  state.step = json.at("step").get<int64_t>();
  state.optimizer_steps = json.at("optimizer_steps").get<int64_t>();
  state.samples = json.at("samples").get<int64_t>();
  state.tokens = json.at("tokens").get<int64_t>();
  state.seed = json.at("seed").get<uint64_t>();
  state.data_size = json.at("data_size").get<int64_t>();
  state.data_shuffle = json.at("data_shuffle").get<bool>();
  state.loss_scale = DoubleFromJson(json.at("loss_scale"));
  state.loss_scale_good_steps = json.at("loss_scale_good_steps").get<int64_t>();
  state.last_loss = DoubleFromJson(json.at("last_loss"));
  return state;
}

Json FileToJson(const ManifestFile& file) {
  Json ranges = Json::array();
  for (const ManifestRange& range : file.ranges) {
    ranges.push_back({{"kind", range.kind},
                      {"parameter", range.parameter},
                      {"begin", range.begin},
                      {"length", range.length}});
  }
  return {{"file", file.name},
          {"bytes", file.bytes},
          {"crc32c", absl::StrFormat("%08x", file.crc32c)},
          {"ranges", std::move(ranges)}};
}

ManifestFile FileFromJson(const Json& json) {
  ManifestFile file;
  file.name = json.at("file").get<std::string>();
  file.bytes = json.at("bytes").get<int64_t>();
  // What doesn't parse stays 0, and the file's bytes then tell.
  (void)absl::SimpleHexAtoi(json.at("crc32c").get<std::string>(), &file.crc32c);
  for (const Json& range : json.at("ranges")) {
    file.ranges.push_back({range.at("kind").get<std::string>(),
                           range.at("parameter").get<std::string>(),
                           range.at("begin").get<int64_t>(),
                           range.at("length").get<int64_t>()});
  }
  return file;
}

// Throws Json::exception.
Manifest FromJson(const Json& json) {
  Manifest manifest;
  manifest.train_state = TrainStateFromJson(json.at("train_state"));
  manifest.world_size = json.at("world_size").get<int>();
  manifest.config_text = json.at("config").get<std::string>();
  manifest.state_names = json.at("state_names").get<std::vector<std::string>>();
  for (const Json& parameter : json.at("parameters")) {
    manifest.parameters.push_back(
        {parameter.at("name").get<std::string>(),
         parameter.at("shape").get<std::vector<int64_t>>()});
  }
  for (const Json& file : json.at("files")) {
    manifest.files.push_back(FileFromJson(file));
  }
  return manifest;
}

absl::Status CheckRanges(const Manifest& manifest) {
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
  for (const ManifestFile& file : manifest.files) {
    if (file.name.empty() || file.name.find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", file.name, "' isn't a plain file name"));
    }
    for (const ManifestRange& range : file.ranges) {
      const auto found = numels.find(range.parameter);
      if (found == numels.end() || range.begin < 0 || range.length <= 0 ||
          range.begin > found->second ||
          range.length > found->second - range.begin) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%d elements from element %d of '%s' are not in that parameter",
            range.length, range.begin, range.parameter));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ManifestRange::Key() const {
  return absl::StrCat(kind, "/", parameter, "/", begin);
}

std::string ManifestToJson(const Manifest& manifest) {
  Json parameters = Json::array();
  for (const ManifestParameter& parameter : manifest.parameters) {
    parameters.push_back(
        {{"name", parameter.name}, {"shape", parameter.shape}});
  }
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back(FileToJson(file));
  }
  const Json json = {{"format_version", kFormatVersion},
                     {"train_state", TrainStateToJson(manifest.train_state)},
                     {"world_size", manifest.world_size},
                     {"config", manifest.config_text},
                     {"state_names", manifest.state_names},
                     {"parameters", std::move(parameters)},
                     {"files", std::move(files)}};
  return json.dump(1) + "\n";
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestFile);
  if (!PathExists(path)) {
    return absl::NotFoundError(absl::StrCat(
        folder, " isn't a whole checkpoint: it has no ", kManifestFile));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  Manifest manifest;
  try {
    const Json json = Json::parse(text);
    const int version = json.at("format_version").get<int>();
    if (version != kFormatVersion) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: format_version is %d; this trainer reads %d",
                          path, version, kFormatVersion));
    }
    manifest = FromJson(json);
  } catch (const Json::exception& e) {
    return absl::DataLossError(absl::StrCat(path, ": is damaged: ", e.what()));
  }
  const absl::Status status = CheckRanges(manifest);
  if (!status.ok()) return Annotate(status, path);
  return manifest;
}

std::string ManifestFileToJson(const ManifestFile& file) {
  return FileToJson(file).dump();
}

absl::StatusOr<ManifestFile> ReadManifestFile(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  try {
    return FileFromJson(Json::parse(text));
  } catch (const Json::exception& e) {
    return absl::DataLossError(absl::StrCat(path, ": is damaged: ", e.what()));
  }
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
      return absl::DataLossError(absl::StrFormat(
          "element %d of %s of '%s' is missing", begin, kind, parameter));
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
  CAPSTAN_RETURN_IF_ERROR(Cover(kind, parameter, 0, numel).status());
  int64_t stored = 0;
  const auto found = pieces_.find({kind, parameter});
  if (found != pieces_.end()) {
    for (const Piece& piece : found->second) stored += piece.length;
  }
  if (stored != numel) {
    return absl::InternalError(absl::StrFormat(
        "%d elements of %s of '%s' are owned by more than one rank",
        stored - numel, kind, parameter));
  }
  return absl::OkStatus();
}

}  // namespace capstan
