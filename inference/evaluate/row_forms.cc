// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/yaml.h>

#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "inference/evaluate/function_forms.h"

namespace capstan::evaluate {

// The text of row_forms.yaml (BUILD).
extern const char kRowFormsYaml[];

namespace {

std::vector<RowForm> ReadForms() {
  const std::pair<const char*, RowForm::Kind> kinds[] = {
      {"text", RowForm::kText},
      {"value", RowForm::kValue},
      {"json", RowForm::kJson}};
  std::vector<RowForm> forms(CodeForms().begin(), CodeForms().end());
  for (const YAML::Node& node : YAML::Load(kRowFormsYaml)) {
    RowForm form;
    form.name = node["form"].as<std::string>();
    form.digest = node["digest"].as<uint64_t>();
    for (const auto& [key, kind] : kinds) {
      if (!node[key]) continue;
      form.kind = kind;
      form.source =
          absl::StrReplaceAll(node[key].as<std::string>(), {{"\n", ""}});
    }
    forms.push_back(std::move(form));
  }
  return forms;
}

}  // namespace

absl::Span<const RowForm> RowForms() {
  static const auto* const forms = new std::vector<RowForm>(ReadForms());
  return *forms;
}

}  // namespace capstan::evaluate
