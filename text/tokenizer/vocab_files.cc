// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/vocab_files.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status.h"
#include "text/tokenizer/word_scanner.h"

namespace capstan::tokenizer {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr char kEndOfText[] = "<|endoftext|>";

constexpr char kWithoutVocab[] = R"({
  "version": "1.0", "added_tokens": [], "normalizer": null,
  "pre_tokenizer": null, "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": true,
              "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false}
})";

// A vocabulary has more keys than an ordered object may.
template <typename Object>
absl::StatusOr<Object> ParseKeys(const std::string& name,
                                 const std::string& text) {
  Object json = ParseJson<Object>(text);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(name, " must hold an object"));
}

// "" if null or absent.
std::string Text(const OrderedJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : "";
}

bool IsTrue(const OrderedJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

// TOKENIZER_MAPPING_NAMES of transformers' auto/tokenization_auto.py.
std::string ClassOf(const std::string& model_type) {
  for (const char* name :
       {"gpt2", "gpt_neo", "gptj", "codegen", "phi", "starcoder2"}) {
    if (model_type == name) return "GPT2Tokenizer";
  }
  for (const char* name :
       {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"}) {
    if (model_type == name) return "Qwen2Tokenizer";
  }
  return "";
}

absl::StatusOr<Json> ReadMerges(absl::string_view text) {
  Json merges = Json::array();
  if (absl::EndsWith(text, "\n")) text.remove_suffix(1);
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripSuffix(line, "\r");
    if (absl::StartsWith(line, "#version")) continue;
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    if (parts.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("merges.txt, line ", line_number,
                       ": must be two tokens with a space between them"));
    }
    merges.push_back(parts);
  }
  return merges;
}

// The pre_tokenizer and the normalizer of a class.
void SetSteps(const std::string& name, bool add_prefix_space, Json* json) {
  const bool gpt2 = name == "GPT2Tokenizer";
  Json bytes = {{"type", "ByteLevel"},
                {"add_prefix_space", add_prefix_space},
                {"trim_offsets", true},
                {"use_regex", gpt2}};
  if (gpt2) {
    (*json)["pre_tokenizer"] = std::move(bytes);
    return;
  }
  (*json)["normalizer"] = {{"type", "NFC"}};
  Json split = {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}};
  split["pattern"]["Regex"] = std::string(kQwen2Words);
  (*json)["pre_tokenizer"] = {{"type", "Sequence"},
                              {"pretokenizers", {split, std::move(bytes)}}};
}

// What add_bos_token and add_eos_token ask for.
absl::Status SetEnds(const OrderedJson& config, Json* json) {
  Json single = Json::array();
  Json tokens = Json::object();
  const auto add = [&](const char* wanted, const char* name) -> absl::Status {
    const std::string token = Text(config, name);
    if (!IsTrue(config, wanted) || token.empty()) return absl::OkStatus();
    const Json& vocab = (*json)["model"]["vocab"];
    if (!vocab.contains(token)) {
      return absl::UnimplementedError(
          absl::StrCat("tokenizer_config.json: ", wanted, " with \"", token,
                       "\", which vocab.json lacks, isn't supported"));
    }
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    tokens[token] = {
        {"id", token}, {"ids", {vocab[token]}}, {"tokens", {token}}};
    return absl::OkStatus();
  };
  CAPSTAN_RETURN_IF_ERROR(add("add_bos_token", "bos_token"));
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  CAPSTAN_RETURN_IF_ERROR(add("add_eos_token", "eos_token"));
  if (tokens.empty()) return absl::OkStatus();
  Json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  (*json)["post_processor"] = {{"type", "TemplateProcessing"},
                               {"single", std::move(single)},
                               {"pair", std::move(pair)},
                               {"special_tokens", std::move(tokens)}};
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeTokenizerJson(const std::string& model_type,
                               std::map<std::string, std::string>* files) {
  // In its order, in which tokens get their ids.
  OrderedJson config = OrderedJson::object();
  std::string& config_text = (*files)["tokenizer_config.json"];
  if (!config_text.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        config, ParseKeys<OrderedJson>("tokenizer_config.json", config_text));
  }
  std::string name(absl::StripSuffix(Text(config, "tokenizer_class"), "Fast"));
  if (name.empty()) name = ClassOf(model_type);
  const bool qwen2 = name == "Qwen2Tokenizer";
  if (name != "GPT2Tokenizer" && !qwen2) {
    return absl::UnimplementedError(absl::StrCat(
        "vocab.json and merges.txt without a tokenizer.json are read for "
        "GPT2Tokenizer and Qwen2Tokenizer, not for ",
        name.empty() ? "a folder whose tokenizer_config.json has no "
                       "tokenizer_class"
                     : name,
        ": have transformers save the tokenizer anew, which writes "
        "tokenizer.json"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      Json vocab, ParseKeys<Json>("vocab.json", files->at("vocab.json")));
  CAPSTAN_ASSIGN_OR_RETURN(Json merges, ReadMerges(files->at("merges.txt")));
  Json json = Json::parse(kWithoutVocab);
  json["model"]["vocab"] = std::move(vocab);
  json["model"]["merges"] = std::move(merges);
  SetSteps(name, IsTrue(config, "add_prefix_space"), &json);
  for (const char* token : {"unk_token", "eos_token"}) {
    config.emplace(token, kEndOfText);
  }
  config.emplace(qwen2 ? "pad_token" : "bos_token", kEndOfText);
  CAPSTAN_RETURN_IF_ERROR(SetEnds(config, &json));
  config_text = config.dump(2) + "\n";
  (*files)["tokenizer.json"] = json.dump() + "\n";
  files->erase("vocab.json");
  files->erase("merges.txt");
  return absl::OkStatus();
}

}  // namespace capstan::tokenizer
