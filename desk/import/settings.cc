// SPDX-License-Identifier: Apache-2.0
#include "desk/import/settings.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <map>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "text/yaml/limits.h"

namespace capstan::import {
namespace {

constexpr int64_t kMostBytes = 1 << 20;

void Flatten(const YAML::Node& node, const std::string& key,
             std::vector<Setting>* settings) {
  if (node.IsMap()) {
    // Of a repeated key the last counts, as in PyYAML.
    std::map<std::string, int> left;
    for (const auto& pair : node) {
      if (pair.first.IsScalar()) ++left[pair.first.Scalar()];
    }
    const std::string prefix = key.empty() ? "" : absl::StrCat(key, ".");
    for (const auto& pair : node) {
      if (!pair.first.IsScalar()) {
        // A key may be anything in YAML; no program has one that is no text.
        settings->push_back({prefix + "(a key that is no text)", ""});
      } else if (--left[pair.first.Scalar()] == 0) {
        Flatten(pair.second, prefix + pair.first.Scalar(), settings);
      }
    }
  } else if (node.IsSequence()) {
    std::vector<std::string> items;
    for (size_t i = 0; i < node.size(); ++i) {
      if (node[i].IsScalar()) {
        items.push_back(node[i].Scalar());
      } else {
        Flatten(node[i], absl::StrCat(key, "[", i, "]"), settings);
      }
    }
    if (items.empty() && node.size() > 0) return;
    settings->push_back({key,
                         absl::StrCat("[", absl::StrJoin(items, ", "), "]"),
                         false, true, std::move(items)});
  } else if (node.IsScalar()) {
    settings->push_back({key, node.Scalar()});
  } else {
    settings->push_back({key, "null", true});
  }
}

// Throws where yaml-cpp stands still: it takes a comma outside of brackets for
// an empty document, without end.
class Documents : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (mark.pos == last_) {
      throw YAML::ParserException(mark, "a comma outside of brackets");
    }
    last_ = mark.pos;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  int last_ = -1;
};

absl::Status FlattenYaml(const std::string& path, const std::string& text,
                         std::vector<Setting>* settings) {
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    Documents documents;
    while (parser.HandleNextDocument(documents)) {
    }
    YAML::Node root;
    for (const YAML::Node& document : YAML::LoadAll(text)) {
      if (document.IsNull()) continue;
      if (!root.IsNull()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ":", document.Mark().line + 1,
                         ": is a second document, behind ---: put it in a file "
                         "of its own"));
      }
      root.reset(document);
    }
    if (!YamlFits(root)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path,
                       ": is nested too deeply, or its aliases stand for more "
                       "than settings are"));
    }
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          ": has no settings: neither YAML or JSON with keys nor a script "
          "with accelerate, torchrun, trl, llamafactory-cli or python"));
    }
    Flatten(root, "", settings);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ":", error.mark.line + 1, ": isn't YAML: ", error.msg));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Settings> ReadSettings(const std::string& given) {
  const std::string path =
      IsFolder(given) ? absl::StrCat(given, "/adapter_config.json") : given;
  if (absl::EndsWith(path, ".py")) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": Python isn't read: write its settings as YAML with the same names, "
        "or begin with `trainer init`"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text,
                           ReadWholeFile(path, kMostBytes));
  const absl::string_view body = absl::StripLeadingAsciiWhitespace(text);
  Settings read{path};
  if (absl::StartsWith(body, "{")) {
    // YAML that has none of JSON's escapes, which yaml-cpp doesn't all read.
    const auto json = ParseJson<nlohmann::ordered_json>(body);
    if (json.is_object()) {
      CAPSTAN_RETURN_IF_ERROR(FlattenYaml(path, json.dump(), &read.settings));
      return read;
    }
    if (absl::EndsWith(path, ".json")) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": isn't JSON, or nested too deeply"));
    }
  }
  if (!absl::EndsWith(path, ".yaml") && !absl::EndsWith(path, ".yml") &&
      !absl::EndsWith(path, ".json")) {
    CAPSTAN_ASSIGN_OR_RETURN(Settings command, ParseCommand(path, text));
    if (!command.settings.empty() || absl::StartsWith(body, "#!")) {
      return command;
    }
  }
  CAPSTAN_RETURN_IF_ERROR(FlattenYaml(path, text, &read.settings));
  return read;
}

}  // namespace capstan::import
