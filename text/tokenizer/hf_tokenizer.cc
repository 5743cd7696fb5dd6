// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/hf_tokenizer.h"

#include <simdjson.h>

#include <set>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json_document.h"
#include "base/status.h"
#include "text/tokenizer/definition.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/vocab_files.h"

namespace capstan::tokenizer {
namespace {

constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kConfig[] = "tokenizer_config.json";
constexpr char kChatTemplate[] = "chat_template.jinja";
constexpr char kSpecialTokensMap[] = "special_tokens_map.json";
constexpr char kAddedTokens[] = "added_tokens.json";

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

// Each token with all that tells it from others.
std::set<std::string> Lines(const AddedTokens& tokens) {
  std::set<std::string> lines;
  for (const auto& [id, token] : tokens.all()) {
    lines.insert(absl::StrCat(id, " ", token.single_word, token.lstrip,
                              token.rstrip, token.normalized, token.special,
                              " ", token.content, "\n"));
  }
  return lines;
}

// Notes where in the caller's text a token is, bytes [begin, end) of `frame`.
void PushPlace(const Frame* frame, size_t begin, size_t end, Worker* worker) {
  ToCaller(frame, &begin, &end);
  worker->begins.push_back(static_cast<int64_t>(begin));
  worker->ends.push_back(static_cast<int64_t>(end));
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
  CAPSTAN_RETURN_IF_ERROR(made->Load());
  return made;
}

absl::Status HfTokenizer::Load() {
  const auto read = [this](const char* name, const auto& use) {
    const auto file = files_.find(name);
    return file == files_.end() ? absl::OkStatus()
                                : WithJson(file->second, name, use);
  };
  CAPSTAN_RETURN_IF_ERROR(
      read(kConfig, [this](const JsonNode& root) { return LoadConfig(root); }));
  CAPSTAN_RETURN_IF_ERROR(read(kSpecialTokensMap, [this](const JsonNode& root) {
    return written_.ReadMap(root);
  }));
  CAPSTAN_RETURN_IF_ERROR(read(kAddedTokens, [this](const JsonNode& root) {
    return written_.ReadAddedTokens(root);
  }));
  CAPSTAN_RETURN_IF_ERROR(read(kTokenizer, [this](const JsonNode& root) {
    return LoadTokenizer(root);
  }));
  const auto jinja = files_.find(kChatTemplate);
  if (jinja != files_.end()) chat_template_ = jinja->second;
  return absl::OkStatus();
}

absl::Status HfTokenizer::LoadModel(const JsonNode& root) {
  const JsonNode model = root.Member("model");
  CAPSTAN_RETURN_IF_ERROR(model.Object().status());
  std::string type = "BPE";  // the oldest files lack it
  if (!model.Member("type").IsNull()) {
    CAPSTAN_ASSIGN_OR_RETURN(type, model.String("type"));
  }
  CAPSTAN_RETURN_IF_ERROR(vocabulary_.Load(model.Member("vocab")));
  CAPSTAN_ASSIGN_OR_RETURN(pre_tokenizers_,
                           MakePreTokenizers(root.Member("pre_tokenizer"),
                                             /*takes_bytes=*/type == "BPE" &&
                                                 Bpe::TakesBytes(model)));
  if (type == "BPE") {
    CAPSTAN_ASSIGN_OR_RETURN(
        bpe_, Bpe::Make(model, pre_tokenizers_.byte_level, &vocabulary_));
  } else if (type == "WordPiece") {
    CAPSTAN_ASSIGN_OR_RETURN(model_, MakeWordPiece(model, &vocabulary_));
  } else if (type == "WordLevel") {
    CAPSTAN_ASSIGN_OR_RETURN(model_, MakeWordLevel(model, &vocabulary_));
  } else if (type == "Unigram") {
    CAPSTAN_ASSIGN_OR_RETURN(model_, MakeUnigram(model, &vocabulary_));
  } else {
    return model.Member("type").Unsupported("\"", type, "\" isn't supported");
  }
  return absl::OkStatus();
}

absl::Status HfTokenizer::LoadTokenizer(const JsonNode& root) {
  // "truncation" and "padding" are ignored: the run decides lengths.
  CAPSTAN_RETURN_IF_ERROR(root.CheckMembers(
      {"version", "truncation", "padding", "added_tokens", "normalizer",
       "pre_tokenizer", "post_processor", "decoder", "model"}));
  CAPSTAN_RETURN_IF_ERROR(LoadModel(root));
  CAPSTAN_ASSIGN_OR_RETURN(normalizers_,
                           MakeNormalizers(root.Member("normalizer")));
  CAPSTAN_ASSIGN_OR_RETURN(std::vector<AddedToken> added,
                           MakeAddedTokens(root.Member("added_tokens")));
  CAPSTAN_RETURN_IF_ERROR(added_.Add(std::move(added), &vocabulary_));
  const std::set<std::string> own = Lines(added_);
  CAPSTAN_RETURN_IF_ERROR(written_.ReadTokenizer(root));
  CAPSTAN_RETURN_IF_ERROR(added_.Add(written_.Added(), &vocabulary_));
  for (const std::string& line : Lines(added_)) {
    if (own.count(line) == 0) beside_ += line;
  }
  if (written_.split_special_tokens()) beside_ += "split_special_tokens\n";
  if (vocabulary_.size() == 0) {
    return root.Member("model").Member("vocab").Invalid(
        "there is no token in it");
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      ends_, MakeEnds(root.Member("post_processor"), vocabulary_));
  std::map<int64_t, Decoder::Spelling> spellings;
  for (const auto& [id, token] : added_.all()) {
    spellings[id] = {Spelling(token), token.special};
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      decoder_, Decoder::Make(root.Member("decoder"), vocabulary_, spellings));
  for (const auto& [name, id] : {std::pair("bos_token", &special_ids_.bos),
                                 std::pair("eos_token", &special_ids_.eos),
                                 std::pair("pad_token", &special_ids_.pad)}) {
    *id = vocabulary_.IdOf(written_.Named(name));
  }
  Connect();
  IndexAddedTokens(spellings);
  return absl::OkStatus();
}

absl::Status HfTokenizer::LoadConfig(const JsonNode& root) {
  CAPSTAN_ASSIGN_OR_RETURN(chat_template_,
                           ChatTemplate(root.Member("chat_template")));
  for (const char* name : {"fix_mistral_regex", "fast_tokenizer_files"}) {
    const JsonNode other = root.Member(name);
    if (other.IsNull() || !other.Bool(true).value_or(true)) continue;
    return other.Unsupported("asks for another tokenizer than tokenizer.json");
  }
  return written_.ReadConfig(root);
}

void HfTokenizer::Connect() {
  reads_characters_ = pre_tokenizers_.reads_characters ||
                      !pre_tokenizers_.byte_level || !normalizers_.empty();
  model_step_ =
      std::make_unique<ModelStep>(bpe_.get(), model_.get(), reads_characters_);
  first_step_ = model_step_.get();
  std::vector<std::unique_ptr<PieceStep>>& steps = pre_tokenizers_.steps;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    (*step)->set_next(first_step_);
    first_step_ = step->get();
  }
}

std::string HfTokenizer::Spelling(const AddedToken& token) const {
  std::string spelling = token.content;
  if (!token.normalized) return spelling;
  RegexState state;
  state.budget.Begin(spelling.size());
  for (const auto& normalizer : normalizers_) {
    std::string changed;
    Alignment alignment;
    if (normalizer->Apply(spelling, &state, &changed, &alignment)) {
      spelling = std::move(changed);
    }
  }
  return spelling;
}

void HfTokenizer::IndexAddedTokens(
    const std::map<int64_t, Decoder::Spelling>& spellings) {
  special_.resize(vocabulary_.size());
  for (const auto& [id, token] : added_.all()) {
    if (token.special) special_[id] = true;
    const std::string& spelling = spellings.at(id).text;
    if (spelling.empty()) continue;
    (token.normalized ? normalized_finder_ : plain_finder_)
        .Add(spelling, &token);
  }
  if (!written_.split_special_tokens()) return;
  plain_finder_.SkipSpecial();
  normalized_finder_.SkipSpecial();
}

void HfTokenizer::ModelStep::Take(const Piece& piece, Worker* worker) const {
  if (worker->seeks_left_out) return SeekLeftOut(piece, worker);
  if (bpe_ == nullptr) {
    model_->Encode(piece.text, &worker->regex.budget, &worker->symbols);
  } else if (worker->with_places) {
    bpe_->EncodeWithPlaces(piece.text, piece.frame->text, &worker->bpe,
                           &worker->symbols);
  } else {
    bpe_->Encode(piece.text, piece.frame->text, &worker->bpe, &worker->ids);
    return;
  }
  TakeSymbols(piece, worker);
}

void HfTokenizer::ModelStep::TakeSymbols(const Piece& piece,
                                         Worker* worker) const {
  const absl::string_view text = piece.frame->text;
  const size_t offset = piece.text.data() - text.data();
  for (const Symbol& symbol : worker->symbols) {
    worker->ids.push_back(symbol.id);
    if (!worker->with_places) continue;
    size_t begin = offset + symbol.begin;
    size_t end = begin + symbol.size;
    if (whole_characters_) {
      while (begin > 0 && IsContinuation(text[begin])) --begin;
      while (end < text.size() && IsContinuation(text[end])) ++end;
    }
    PushPlace(piece.frame, begin, end, worker);
  }
}

void HfTokenizer::ModelStep::SeekLeftOut(const Piece& piece,
                                         Worker* worker) const {
  if (worker->left_out != absl::string_view::npos) return;
  size_t at = absl::string_view::npos;
  try {
    if (bpe_ != nullptr) {
      at = bpe_->FirstLeftOut(piece.text);
    } else {
      model_->Encode(piece.text, &worker->regex.budget, &worker->symbols);
    }
  } catch (const UnknownWord&) {
    at = 0;  // somewhere in it
  }
  if (at == absl::string_view::npos) return;
  size_t begin = piece.text.data() - piece.frame->text.data() + at;
  while (begin > 0 && IsContinuation(piece.frame->text[begin])) --begin;
  size_t end = begin + 1;
  ToCaller(piece.frame, &begin, &end);
  worker->left_out = begin;
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

int64_t HfTokenizer::FirstUnknown(absl::string_view text) const {
  if (bpe_ != nullptr ? !bpe_->leaves_out() : !model_->refuses_unknown()) {
    return -1;
  }
  size_t at = absl::string_view::npos;
  WithWorker([&](Worker* worker) {
    worker->ids.clear();
    worker->with_places = false;
    worker->seeks_left_out = true;
    worker->left_out = absl::string_view::npos;
    Run(text, worker);
    worker->seeks_left_out = false;
    at = worker->left_out;
  });
  return at == absl::string_view::npos ? -1 : static_cast<int64_t>(at);
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
  AddedTokenFinder::Search search;
  AddedTokenFinder::Match match;
  while (finder.Next(piece.text, &worker->regex.budget, &search, &match)) {
    if (match.begin > done) {
      rest({piece.frame, piece.text.substr(done, match.begin - done)});
    }
    worker->ids.push_back(match.token->id);
    if (worker->with_places) {
      const size_t offset = piece.text.data() - piece.frame->text.data();
      PushPlace(piece.frame, offset + match.begin, offset + match.end, worker);
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

std::string HfTokenizer::definition() const {
  return files_.at(kTokenizer) + beside_;
}

std::string HfTokenizer::chat_template() const { return chat_template_; }

absl::Status HfTokenizer::Save(const std::string& folder) const {
  for (const auto& [name, text] : files_) {
    CAPSTAN_RETURN_IF_ERROR(
        WriteWholeFile(absl::StrCat(folder, "/", name), text));
  }
  return absl::OkStatus();
}

namespace {

// Null if there is no such file.
absl::StatusOr<absl::optional<std::string>> ReadIfThere(
    const std::string& path) {
  if (!PathExists(path)) return absl::optional<std::string>();
  CAPSTAN_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path));
  return absl::optional<std::string>(std::move(text));
}

// "" if there is no config.json, or none in it.
absl::StatusOr<std::string> ModelType(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> text,
                           ReadIfThere(folder + "/config.json"));
  std::string type;
  if (!text.has_value()) return type;
  CAPSTAN_RETURN_IF_ERROR(
      WithJson(*text, "config.json", [&type](const JsonNode& root) {
        type = root.String("model_type").value_or("");
        return absl::OkStatus();
      }));
  return type;
}

// By name; tokenizer.json is always there.
absl::StatusOr<HfTokenizer::Files> ReadFiles(const std::string& folder) {
  HfTokenizer::Files files;
  for (const char* name :
       {kTokenizer, kConfig, kChatTemplate, kSpecialTokensMap, kAddedTokens}) {
    CAPSTAN_ASSIGN_OR_RETURN(absl::optional<std::string> text,
                             ReadIfThere(absl::StrCat(folder, "/", name)));
    if (text.has_value()) files[name] = *std::move(text);
  }
  if (files.count(kTokenizer) > 0) return files;
  for (const char* name : {"vocab.json", "merges.txt"}) {
    CAPSTAN_ASSIGN_OR_RETURN(absl::optional<std::string> text,
                             ReadIfThere(absl::StrCat(folder, "/", name)));
    if (!text.has_value()) {
      return absl::NotFoundError(
          absl::StrCat("there is no ", folder, "/", kTokenizer));
    }
    files[name] = *std::move(text);
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string model_type, ModelType(folder));
  const absl::Status made = MakeTokenizerJson(model_type, &files);
  if (!made.ok()) return Annotate(made, folder);
  return files;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HfTokenizer>> HfTokenizer::Open(
    const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(Files files, ReadFiles(folder));
  absl::StatusOr<std::unique_ptr<HfTokenizer>> made =
      Make(std::move(files), folder + "/");
  if (!made.ok()) return Annotate(made.status(), folder);
  return made;
}

absl::StatusOr<std::string> TokenizerDefinition(const Tokenizer& tokenizer,
                                                const std::string& folder) {
  if (const auto* loaded = dynamic_cast<const HfTokenizer*>(&tokenizer)) {
    return loaded->definition();
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfTokenizer> opened,
                           HfTokenizer::Open(folder));
  return opened->definition();
}

}  // namespace capstan::tokenizer

namespace capstan {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& folder) {
  return tokenizer::HfTokenizer::Open(folder);
}

}  // namespace capstan
