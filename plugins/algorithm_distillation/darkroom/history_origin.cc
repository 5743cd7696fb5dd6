// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom/history_origin.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/play.h"
#include "plugins/sdk/part.h"

namespace capstan::darkroom {
namespace {

constexpr char kDarkroom[] = "darkroom";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostHorizon = 1 << 30;

}  // namespace

std::string OriginToJson(const HistoryOrigin& origin) {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["environment"] = origin.environment;
  if (origin.environment == kDarkroom) {
    json["tasks"] = origin.permuted ? "permutations" : "goals";
    json["grid"] = origin.grid;
  } else {
    json["config"] = absl::BytesToHexString(origin.config);
  }
  json["horizon"] = origin.horizon;
  json["seed"] = origin.seed;
  return json.dump();
}

absl::StatusOr<HistoryOrigin> OriginFromJson(const std::string& path,
                                             const std::string& text) {
  const std::string what =
      absl::StrCat(path, ": its attribute \"", kOriginName, "\"");
  CAPSTAN_ASSIGN_OR_RETURN(const nlohmann::ordered_json json,
                           ParseObject(what, text));
  const auto bad = [&what](const char* key, const std::string& wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": \"", key, "\" must be ", wanted));
  };
  const auto number = [&json](const char* key, int64_t least, int64_t most) {
    const auto it = json.find(key);
    const absl::optional<int64_t> value =
        it == json.end() ? absl::nullopt : JsonInteger(*it);
    return value.has_value() && *value >= least && *value <= most
               ? value
               : absl::nullopt;
  };
  const auto string = [&json](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : "";
  };
  if (number("version", kVersion, kVersion) == absl::nullopt) {
    return bad("version", absl::StrCat(kVersion, ": a newer trainer reads it"));
  }
  HistoryOrigin origin;
  origin.environment = string("environment");
  if (origin.environment.empty()) return bad("environment", "a name");
  if (origin.environment == kDarkroom) {
    const std::string tasks = string("tasks");
    origin.permuted = tasks == "permutations";
    if (!origin.permuted && tasks != "goals") {
      return bad("tasks", "\"goals\" or \"permutations\"");
    }
    const auto grid = number("grid", 1, 255);
    if (!grid.has_value()) return bad("grid", "1 to 255");
    origin.grid = static_cast<int>(*grid);
  } else {
    const std::string hex = string("config");
    origin.config = absl::HexStringToBytes(hex);
    if (absl::BytesToHexString(origin.config) != hex) {
      return bad("config", "hexadecimal");
    }
  }
  const auto horizon = number("horizon", 1, kMostHorizon);
  if (!horizon.has_value()) return bad("horizon", "1 or more");
  origin.horizon = static_cast<int>(*horizon);
  origin.seed = number("seed", INT64_MIN, INT64_MAX).value_or(0);
  return origin;
}

absl::StatusOr<std::shared_ptr<const Environment>> EnvironmentOfPlugin(
    const std::string& type, const std::string& config) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Part> part,
                           CreatePart(type, config));
  std::shared_ptr<const Part> shared = std::move(part);
  auto environment = std::dynamic_pointer_cast<const Environment>(shared);
  if (environment == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(type, " is a part of something else, not an environment"));
  }
  const absl::Status status = CheckEnvironment(*environment);
  if (!status.ok()) return Annotate(status, type);
  return environment;
}

absl::Status InEnvironmentField(const absl::Status& status) {
  if (status.ok()) return status;
  const absl::optional<std::string> inner = FieldOf(status);
  return FieldError(inner.has_value() ? "environment." + *inner : "environment",
                    status.message());
}

absl::StatusOr<std::shared_ptr<const Environment>> EnvironmentOf(
    const HistoryOrigin& origin) {
  if (origin.environment == kDarkroom) {
    const Variant variant =
        origin.permuted ? Variant::kPermuted : Variant::kGoals;
    return std::make_shared<const Darkroom>(variant,
                                            Room{origin.grid, origin.horizon});
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      std::shared_ptr<const Environment> environment,
      EnvironmentOfPlugin(origin.environment, origin.config));
  const int horizon = environment->spec().horizon;
  if (horizon != origin.horizon) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the file has episodes of ", origin.horizon, " steps of ",
        origin.environment, ", whose episodes now have ", horizon));
  }
  return environment;
}

}  // namespace capstan::darkroom
