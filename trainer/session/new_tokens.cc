// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/new_tokens.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "inference/load/create_model.h"
#include "inference/load/run_tokenizer.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/model_tokenizer.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

using google::protobuf::Any;

// The modules whose rows are tokens: "embed_tokens", and "lm_head" unless it is
// the same.
std::vector<std::string> TokenModules(const Model& model) {
  std::vector<std::string> modules;
  const std::vector<ParameterSpec>& specs = model.parameters();
  for (size_t i = 0; i < specs.size(); ++i) {
    const ParameterRole role = model.role(static_cast<int>(i));
    if (role != ParameterRole::kEmbedding && role != ParameterRole::kHead) {
      continue;
    }
    const std::string module =
        specs[i].name.substr(0, specs[i].name.rfind('.'));
    modules.push_back(module.substr(module.rfind('.') + 1));
  }
  return modules;
}

// Adds them to the adapter's modules_to_save. Returns a note, or "".
absl::StatusOr<std::string> TrainModules(
    const std::vector<std::string>& modules, Lora* lora) {
  std::vector<std::string> missing;
  for (const std::string& module : modules) {
    const auto& named = lora->modules_to_save();
    if (std::none_of(named.begin(), named.end(), [&](const auto& name) {
          return name == module || absl::EndsWith(name, "." + module);
        })) {
      missing.push_back(module);
    }
  }
  if (missing.empty()) return "";
  if (!lora->pretrained().empty()) {
    return FieldError(
        "pretrained",
        "is an adapter that knows nothing of the tokens that this run adds: "
        "merge it into its base (trainer merge), and add them to that");
  }
  for (const std::string& module : missing) lora->add_modules_to_save(module);
  return absl::StrCat(
      "adapter.lora.modules_to_save: ", absl::StrJoin(missing, ", "),
      " trained whole, since the new tokens' rows are there");
}

}  // namespace

absl::Status SettleNewTokens(LoadedConfig* loaded, PluginHost& host,
                             const std::string& resumed_from) {
  RunConfig& config = loaded->config;
  if (!AddsTokens(config)) return absl::OkStatus();
  RunTokenizer tokenizer(TokenizerFolders(config, resumed_from));
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t added, tokenizer.AddTokens(*loaded));
  const int64_t tokens = CurrentModelTokenizer().tokenizer->vocab_size();
  LoadedConfig whole = *loaded;
  whole.config.clear_adapter();
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                           CreateModel(whole, host));
  const TokenModel* const token_model = model->token_model();
  if (token_model == nullptr) {
    return loaded->Locate(absl::InvalidArgumentError(
                              "this model has no tokens: leave out add_tokens, "
                              "add_special_tokens and chat_format"),
                          "model");
  }
  const int64_t rows = token_model->vocab_size();
  if (rows < tokens) {
    absl::StatusOr<Any> grown = WithVocabulary(config.model(), tokens);
    CAPSTAN_RETURN_IF_ERROR(loaded->Locate(grown.status(), "model"));
    *config.mutable_model() = *std::move(grown);
  }
  if (added == 0) {
    if (rows < tokens) {
      loaded->notes.push_back(absl::StrCat("the model's rows grow from ", rows,
                                           " to the tokenizer's ", tokens));
    }
    return absl::OkStatus();
  }
  loaded->notes.push_back(absl::StrCat(
      "the tokenizer gets ", added, added == 1 ? " token" : " tokens",
      " more; ",
      rows < tokens
          ? absl::StrCat("the model's rows grow from ", rows, " to ", tokens)
          : absl::StrCat("the model's ", rows, " rows have room for that")));
  if (!config.adapter().has_lora()) return absl::OkStatus();
  const absl::StatusOr<std::string> note = TrainModules(
      TokenModules(*model), config.mutable_adapter()->mutable_lora());
  CAPSTAN_RETURN_IF_ERROR(loaded->Locate(note.status(), "adapter.lora"));
  if (!note->empty()) loaded->notes.push_back(*note);
  return absl::OkStatus();
}

}  // namespace capstan
