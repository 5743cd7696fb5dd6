// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/task_keys.h"

#include <cmath>
#include <cstdint>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "base/files.h"
#include "base/status.h"
#include "text/yaml/limits.h"

namespace capstan::evaluate {
namespace {

constexpr int kMostIncludes = 8;
constexpr int64_t kMostBytes = 1 << 20;

// With tags and lengths: quoted numbers, say, differ from plain ones.
void AppendNode(const YAML::Node& node, std::string* text) {
  const std::string scalar = node.IsScalar() ? node.Scalar() : "";
  absl::StrAppend(text, node.Type(), node.Tag(), " ", node.size(), " ",
                  scalar.size(), " ", scalar, "\n");
  for (const auto& item : node) {
    if (node.IsMap()) {
      AppendNode(item.first, text);
      AppendNode(item.second, text);
    } else {
      AppendNode(item, text);
    }
  }
}

}  // namespace

absl::StatusOr<TaskKeys> TaskKeys::Read(const std::string& path) {
  TaskKeys keys;
  keys.path_ = path;
  try {
    CAPSTAN_RETURN_IF_ERROR(keys.Include(path, 0));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": ", error.msg));
  }
  return keys;
}

absl::StatusOr<TaskKeys> TaskKeys::Of(const std::string& path,
                                      std::map<std::string, TaskKey> keys) {
  TaskKeys made;
  made.path_ = path;
  made.keys_ = std::move(keys);
  if (!made.Has("include")) return made;
  CAPSTAN_RETURN_IF_ERROR(made.Included(made.At("include"), 0));
  return made;
}

// Later files go before earlier ones.
absl::Status TaskKeys::Included(const TaskKey& include, int depth) {
  const std::vector<std::string> others = Texts("include", include.node);
  for (auto other = others.rbegin(); other != others.rend(); ++other) {
    CAPSTAN_RETURN_IF_ERROR(Include(
        (std::filesystem::path(include.folder) / *other).string(), depth + 1));
  }
  return status_;
}

absl::Status TaskKeys::Include(const std::string& path, int depth) {
  if (depth > kMostIncludes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": includes itself, or ", depth, " others"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  if (static_cast<int64_t>(text.size()) > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is too large for a task"));
  }
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ":", error.mark.line + 1, ": isn't YAML: ", error.msg));
  }
  if (!YamlFits(root)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     ": is nested too deeply, or its aliases stand for "
                     "more than a task has"));
  }
  if (!root.IsMap()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no task"));
  }
  const std::filesystem::path folder =
      std::filesystem::path(path).parent_path();
  for (const auto& pair : root) {
    keys_.emplace(pair.first.as<std::string>(),
                  TaskKey{pair.second, folder.string()});
  }
  if (!root["include"]) return absl::OkStatus();
  known_.insert("include");
  return Included({root["include"], folder.string()}, depth);
}

std::map<std::string, std::string> TaskKeys::AsText() const {
  std::map<std::string, std::string> texts;
  for (const auto& [key, value] : keys_) {
    AppendNode(value.node, &texts[key]);
    double number = 0.0;
    // Of anything else it may be what a path starts from.
    if (!YAML::convert<double>::decode(value.node, number)) {
      texts[key].append(value.folder);
    }
  }
  return texts;
}

void TaskKeys::Fail(absl::string_view key, absl::string_view problem) {
  status_.Update(
      absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " ", problem)));
}

void TaskKeys::Set(const std::string& key, TaskKey value) {
  keys_[key] = std::move(value);
}

bool TaskKeys::Has(const std::string& key) {
  known_.insert(key);
  const auto found = keys_.find(key);
  return found != keys_.end() && !found->second.node.IsNull();
}

void TaskKeys::FailUnknown(const std::set<std::string>& ignored) {
  for (const auto& [key, value] : keys_) {
    if (known_.count(key) == 0 && ignored.count(key) == 0 &&
        !value.node.IsNull()) {
      Fail(key, "is no key of a task that is known here");
    }
  }
}

std::string TaskKeys::GetName(const std::string& key,
                              const std::string& otherwise) {
  std::string name = Get<std::string>(key, otherwise);
  if (name.empty()) Fail(key, "is empty: results go by it, so give it a name");
  for (const char c : name) {
    if (!absl::ascii_iscntrl(static_cast<unsigned char>(c))) continue;
    Fail(key, absl::StrCat("is \"", absl::Utf8SafeCEscape(name),
                           "\", and has a control character: results go by "
                           "it, so write it in one line without"));
    break;
  }
  return name;
}

std::vector<std::string> TaskKeys::Texts(absl::string_view key,
                                         const YAML::Node& node) {
  if (node.IsScalar()) return {As<std::string>(key, node, "")};
  return As<std::vector<std::string>>(key, node, {});
}

Json TaskKeys::Value(absl::string_view key, const YAML::Node& node) {
  if (!node || node.IsNull()) return nullptr;
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const YAML::Node& item : node) list.push_back(Value(key, item));
    return list;
  }
  if (node.IsMap()) {
    Json object = Json::object();
    for (const auto& pair : node) {
      object[pair.first.as<std::string>()] = Value(key, pair.second);
    }
    return object;
  }
  const std::string text = As<std::string>(key, node, "");
  if (node.Tag() != "?") return text;  // quoted scalars have the tag "!"
  int64_t integer = 0;
  double number = 0.0;
  bool flag = false;
  if (YAML::convert<int64_t>::decode(node, integer)) return integer;
  // Unlike yaml-cpp, PyYAML takes 1e5 for a text; it needs the point.
  if (text.find('.') != text.npos && absl::SimpleAtod(text, &number) &&
      std::isfinite(number)) {
    return number;
  }
  if (YAML::convert<bool>::decode(node, flag)) {
    // y and n are texts in PyYAML.
    if (text.size() > 1) return flag;
  }
  return text;
}

bool TaskKeys::IsFunction(const YAML::Node& node) {
  return node && node.IsScalar() && node.Tag() == "!function";
}

std::string TaskKeys::FunctionName(const YAML::Node& node) {
  return node.Scalar();
}

}  // namespace capstan::evaluate
