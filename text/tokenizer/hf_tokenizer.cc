// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/hf_tokenizer.h"

#include <simdjson.h>

#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json_document.h"
#include "base/status.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kConfig[] = "tokenizer_config.json";
constexpr char kChatTemplate[] = "chat_template.jinja";

// "bos_token": "<s>", or {"content": "<s>", ..}; -1 if it is null.
absl::StatusOr<int64_t> SpecialId(const JsonNode& node,
                                  const Vocabulary& vocabulary) {
  if (node.IsNull()) return -1;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string token,
      (node.IsString() ? node : node.Member("content")).String());
  const int64_t id = vocabulary.IdOf(token);
  if (id >= 0) return id;
  return node.Invalid("\"", token, "\" isn't a token of tokenizer.json");
}

// A text, or several named ones, of which "default" is used.
absl::StatusOr<std::string> ChatTemplate(const JsonNode& node) {
  if (node.IsNull()) return "";
  if (node.IsString()) return node.String();
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, node.Items());
  for (const JsonNode& item : items) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string name, item.String("name"));
    if (name == "default") return item.String("template");
  }
  return node.Invalid("has no template named \"default\"");
}

// Makes `ids` begin (`front`) or end with `id` as `add` says.
absl::Status SetEnd(const JsonNode& add, int64_t id, bool front,
                    std::vector<int64_t>* ids) {
  CAPSTAN_ASSIGN_OR_RETURN(const bool wanted, add.Bool(false));
  if (add.IsNull() || id < 0) return absl::OkStatus();
  const bool there =
      !ids->empty() && (front ? ids->front() : ids->back()) == id;
  if (wanted == there) return absl::OkStatus();
  const auto place = front ? ids->begin() : ids->end();
  if (wanted) {
    ids->insert(place, id);
  } else {
    ids->erase(front ? place : place - 1);
  }
  return absl::OkStatus();
}

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
  absl::Status status;
  try {
    status = use(JsonNode(root, ""));
  } catch (const std::exception&) {  // a limit
    status = CurrentExceptionToStatus();
  }
  return Annotate(status, name);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HfTokenizer>> HfTokenizer::Make(
    Files files, const std::string& folder) {
  std::unique_ptr<HfTokenizer> made(new HfTokenizer());
  made->files_ = std::move(files);
  made->folder_ = folder;
  CAPSTAN_RETURN_IF_ERROR(
      WithJson(made->files_.at(kTokenizer), kTokenizer,
               [&](const JsonNode& root) { return made->Load(root); }));
  const auto config = made->files_.find(kConfig);
  if (config != made->files_.end()) {
    CAPSTAN_RETURN_IF_ERROR(
        WithJson(config->second, kConfig,
                 [&](const JsonNode& root) { return made->LoadConfig(root); }));
  }
  const auto jinja = made->files_.find(kChatTemplate);
  if (jinja != made->files_.end()) made->chat_template_ = jinja->second;
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

absl::Status HfTokenizer::LoadConfig(const JsonNode& root) {
  for (const auto& [name, id] : {std::pair("bos_token", &special_ids_.bos),
                                 std::pair("eos_token", &special_ids_.eos),
                                 std::pair("pad_token", &special_ids_.pad)}) {
    CAPSTAN_ASSIGN_OR_RETURN(*id, SpecialId(root.Member(name), vocabulary_));
  }
  CAPSTAN_ASSIGN_OR_RETURN(chat_template_,
                           ChatTemplate(root.Member("chat_template")));
  CAPSTAN_RETURN_IF_ERROR(SetEnd(root.Member("add_bos_token"), special_ids_.bos,
                                 /*front=*/true, &ends_.before));
  return SetEnd(root.Member("add_eos_token"), special_ids_.eos,
                /*front=*/false, &ends_.behind);
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
  size_t bytes = 0;
  for (const AddedToken& token : added_) bytes += token.content.size();
  state.budget.Begin(bytes);
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

void HfTokenizer::ModelStep::Take(const Piece& piece, Worker* worker) const {
  const absl::string_view text = piece.frame->text;
  if (!worker->with_places) {
    bpe_.Encode(piece.text, text, &worker->bpe, &worker->ids);
    return;
  }
  bpe_.EncodeWithPlaces(piece.text, text, &worker->bpe, &worker->symbols);
  const size_t offset = piece.text.data() - text.data();
  for (const Symbol& symbol : worker->symbols) {
    size_t begin = offset + symbol.begin;
    size_t end = begin + symbol.size;
    if (whole_characters_) {
      while (begin > 0 && IsContinuation(text[begin])) --begin;
      while (end < text.size() && IsContinuation(text[end])) ++end;
    }
    ToCaller(piece.frame, &begin, &end);
    worker->ids.push_back(symbol.id);
    worker->begins.push_back(static_cast<int64_t>(begin));
    worker->ends.push_back(static_cast<int64_t>(end));
  }
}

template <typename Use>
void HfTokenizer::WithWorker(const Use& use) const {
  std::unique_ptr<Worker> worker;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      worker = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (worker == nullptr) worker = std::make_unique<Worker>();
  // After an exception the worker is not reused.
  try {
    use(worker.get());
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(
        absl::StrCat(folder_, kTokenizer, ": ", error.what()));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(worker));
}

std::vector<int64_t> HfTokenizer::Encode(absl::string_view text) const {
  std::vector<int64_t> ids;
  WithWorker([&](Worker* worker) {
    worker->with_places = false;
    worker->ids.clear();
    Run(text, worker);
    ids = worker->ids;  // right-sized copy: the worker keeps its capacity
  });
  return ids;
}

Encoding HfTokenizer::EncodeWithPlaces(absl::string_view text) const {
  Encoding encoding;
  WithWorker([&](Worker* worker) {
    worker->with_places = true;
    worker->ids.clear();
    worker->begins.clear();
    worker->ends.clear();
    Run(text, worker);
    encoding = {worker->ids, worker->begins, worker->ends};
  });
  return encoding;
}

void HfTokenizer::Run(absl::string_view text, Worker* worker) const {
  worker->regex.budget.Begin(text.size());
  const Frame given = {text, nullptr, {}, nullptr};
  if (!reads_characters_ || IsUtf8(text)) {
    FindPlain(given, worker);
    return;
  }
  Alignment alignment;
  const std::string valid = ToUtf8(text, &alignment);
  FindPlain({valid, &given, text, &alignment}, worker);
}

template <typename Rest>
void HfTokenizer::Find(const AddedTokenFinder& finder, const Piece& piece,
                       Worker* worker, const Rest& rest) const {
  size_t done = 0;
  size_t search = 0;
  AddedTokenFinder::Match match;
  while (
      finder.Next(piece.text, done, &worker->regex.budget, &search, &match)) {
    if (match.begin > done) {
      rest({piece.frame, piece.text.substr(done, match.begin - done)});
    }
    worker->ids.push_back(match.token->id);
    if (worker->with_places) {
      const size_t offset = piece.text.data() - piece.frame->text.data();
      size_t begin = offset + match.begin;
      size_t end = offset + match.end;
      ToCaller(piece.frame, &begin, &end);
      worker->begins.push_back(static_cast<int64_t>(begin));
      worker->ends.push_back(static_cast<int64_t>(end));
    }
    done = match.end;
  }
  if (done < piece.text.size()) {
    rest({piece.frame, piece.text.substr(done)});
  }
}

void HfTokenizer::FindPlain(const Frame& frame, Worker* worker) const {
  Find(plain_finder_, {&frame, frame.text}, worker,
       [&](const Piece& piece) { Normalize(piece, 0, worker); });
}

void HfTokenizer::Normalize(const Piece& piece, size_t first,
                            Worker* worker) const {
  for (size_t i = first; i < normalizers_.size(); ++i) {
    std::string text;
    Alignment alignment;
    if (normalizers_[i]->Apply(piece.text, &worker->regex, &text, &alignment)) {
      const Frame frame = {text, piece.frame, piece.text, &alignment};
      Normalize({&frame, text}, i + 1, worker);
      return;
    }
  }
  FindNormalized(piece, worker);
}

void HfTokenizer::FindNormalized(const Piece& piece, Worker* worker) const {
  Find(normalized_finder_, piece, worker,
       [&](const Piece& rest) { first_step_->Take(rest, worker); });
}

void HfTokenizer::AddEnds(std::vector<int64_t>* ids) const {
  ids->insert(ids->begin(), ends_.before.begin(), ends_.before.end());
  ids->insert(ids->end(), ends_.behind.begin(), ends_.behind.end());
}

std::string HfTokenizer::Decode(absl::Span<const int64_t> ids) const {
  return decoder_.Decode(ids);
}

absl::optional<int64_t> HfTokenizer::IdOf(absl::string_view token) const {
  const int32_t id = vocabulary_.IdOf(token);
  if (id < 0) return absl::nullopt;
  return id;
}

bool HfTokenizer::IsSpecial(int64_t id) const {
  return id >= 0 && id < static_cast<int64_t>(special_.size()) && special_[id];
}

std::string HfTokenizer::chat_template() const { return chat_template_; }

absl::Status HfTokenizer::Save(const std::string& folder) const {
  for (const auto& [name, text] : files_) {
    CAPSTAN_RETURN_IF_ERROR(
        WriteWholeFile(absl::StrCat(folder, "/", name), text));
  }
  return absl::OkStatus();
}

}  // namespace capstan::tokenizer

namespace capstan {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& folder) {
  using tokenizer::HfTokenizer;
  HfTokenizer::Files files;
  for (const char* name :
       {tokenizer::kTokenizer, tokenizer::kConfig, tokenizer::kChatTemplate}) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (!PathExists(path)) continue;
    CAPSTAN_ASSIGN_OR_RETURN(files[name], ReadWholeFile(path));
  }
  if (files.count(tokenizer::kTokenizer) == 0) {
    return absl::NotFoundError(
        absl::StrCat("there is no ", folder, "/", tokenizer::kTokenizer));
  }
  absl::StatusOr<std::unique_ptr<HfTokenizer>> made =
      HfTokenizer::Make(std::move(files), folder + "/");
  if (!made.ok()) return Annotate(made.status(), folder);
  return std::unique_ptr<Tokenizer>(*std::move(made));
}

}  // namespace capstan
