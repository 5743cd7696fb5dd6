// SPDX-License-Identifier: Apache-2.0
//
// Loads a tokenizer from a Hugging Face folder.
#include <simdjson.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json_document.h"
#include "base/status.h"
#include "plugins/sdk/tokenizer.h"
#include "text/tokenizer/hf_tokenizer.h"

namespace capstan {
namespace tokenizer {
namespace {

// Parses `text` and calls use(root) while the document is alive.
template <typename Use>
absl::Status WithJson(const std::string& text, const std::string& name,
                      const Use& use) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  const simdjson::error_code error =
      ParseJsonDocument(text, text.size(), &parser, &root);
  if (error != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " isn't valid JSON: ", simdjson::error_message(error)));
  }
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must hold an object"));
  }
  return Annotate(use(JsonNode(root, "")), name);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HfTokenizer>> HfTokenizer::Make(
    FolderFiles files) {
  std::unique_ptr<HfTokenizer> made(new HfTokenizer());
  made->files_ = std::move(files);
  CAPSTAN_RETURN_IF_ERROR(
      WithJson(made->files_.tokenizer_json, "tokenizer.json",
               [&](const JsonNode& root) { return made->Load(root); }));
  if (made->files_.tokenizer_config_json.has_value()) {
    CAPSTAN_RETURN_IF_ERROR(WithJson(
        *made->files_.tokenizer_config_json, "tokenizer_config.json",
        [&](const JsonNode& root) -> absl::Status {
          CAPSTAN_ASSIGN_OR_RETURN(
              made->config_,
              MakeTokenizerConfig(root, made->vocabulary_, &made->ends_));
          return absl::OkStatus();
        }));
  }
  return made;
}

absl::Status HfTokenizer::Load(const JsonNode& root) {
  // "truncation" and "padding" are ignored: the run decides lengths.
  CAPSTAN_RETURN_IF_ERROR(root.CheckMembers(
      {"version", "truncation", "padding", "added_tokens", "normalizer",
       "pre_tokenizer", "post_processor", "decoder", "model"}));
  const JsonNode model = root.Member("model");
  CAPSTAN_RETURN_IF_ERROR(model.Object().status());
  CAPSTAN_RETURN_IF_ERROR(Bpe::CheckType(model.Member("type")));
  CAPSTAN_RETURN_IF_ERROR(
      vocabulary_.Load(model.Member("vocab"), root.Member("added_tokens")));
  CAPSTAN_ASSIGN_OR_RETURN(added_,
                           MakeAddedTokens(root.Member("added_tokens")));
  CAPSTAN_ASSIGN_OR_RETURN(normalizers_,
                           MakeNormalizers(root.Member("normalizer")));
  CAPSTAN_ASSIGN_OR_RETURN(pre_tokenizers_,
                           MakePreTokenizers(root.Member("pre_tokenizer")));
  CAPSTAN_ASSIGN_OR_RETURN(
      bpe_, Bpe::Make(model, pre_tokenizers_.byte_level, &vocabulary_));
  CAPSTAN_ASSIGN_OR_RETURN(
      ends_, MakeEnds(root.Member("post_processor"), vocabulary_));
  CAPSTAN_ASSIGN_OR_RETURN(decoder_,
                           Decoder::Make(root.Member("decoder"), vocabulary_));
  Connect();
  IndexAddedTokens();
  return absl::OkStatus();
}

void HfTokenizer::Connect() {
  reads_characters_ = pre_tokenizers_.reads_characters ||
                      !pre_tokenizers_.byte_level || !normalizers_.empty();
  model_step_ = std::make_unique<ModelStep>(bpe_.get(), reads_characters_);
  first_step_ = model_step_.get();
  std::vector<std::unique_ptr<PieceStep>>& steps = pre_tokenizers_.steps;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    (*step)->set_next(first_step_);
    first_step_ = step->get();
  }
}

void HfTokenizer::IndexAddedTokens() {
  special_.resize(vocabulary_.size());
  RegexState state;
  for (const AddedToken& token : added_) {
    if (token.special) special_[token.id] = true;
    if (!token.normalized) {
      plain_finder_.Add(token.content, &token);
      continue;
    }
    std::string spelling = token.content;
    for (const auto& normalizer : normalizers_) {
      std::string changed;
      Alignment alignment;
      if (normalizer->Apply(spelling, &state, &changed, &alignment)) {
        spelling = std::move(changed);
      }
    }
    if (!spelling.empty()) normalized_finder_.Add(spelling, &token);
  }
}

}  // namespace tokenizer

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(tokenizer::FolderFiles files,
                           tokenizer::ReadFolderFiles(folder));
  absl::StatusOr<std::unique_ptr<tokenizer::HfTokenizer>> made =
      tokenizer::HfTokenizer::Make(std::move(files));
  if (!made.ok()) return Annotate(made.status(), folder);
  return std::unique_ptr<Tokenizer>(*std::move(made));
}

}  // namespace capstan
