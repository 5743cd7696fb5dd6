// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/chat.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/files.h"
#include "base/status.h"
#include "datasets/chat/cached_file.h"
#include "datasets/chat/chat_config.h"
#include "datasets/chat/row_encoder.h"
#include "datasets/chat/row_index.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/chat_variables.h"
#include "plugins/sdk/model_tokenizer.h"
#include "plugins/sdk/plugin.h"

namespace capstan::chat {
namespace {

// Of capstan.dpo's KTO: how many rows back a mismatched answer may come from.
constexpr size_t kFarthestMismatch = 8;

// What to do about a template that can't be used.
constexpr char kChatMl[] =
    "; or, in place of chat_template, set chat_format: CHATML beside "
    "train_data: the model's tokenizer gets that template and its tokens";

absl::Status Changed(const SourceRows& rows) {
  return absl::DataLossError(absl::StrCat(
      rows.first_path(),
      ": a cached file of its index has changed since the run began"));
}

// Whether enough of the rows have something to train on.
absl::Status CheckTrainedShare(const SourceRows& rows, double least) {
  uint64_t trained = 0, all = 0;
  for (const SourceRows::File& file : rows.files()) {
    const RowIndex::Facts& facts = file.index->facts();
    trained += facts.rows;
    all += facts.rows + facts.untrained + facts.bad;
  }
  if (static_cast<double>(trained) >= least * static_cast<double>(all)) {
    return absl::OkStatus();
  }
  return FieldError(
      "min_trained_share",
      absl::StrCat("is ", least, ", but only ", trained, " of the ", all,
                   " rows of ", rows.first_path(),
                   rows.files().size() > 1 ? " and the others" : "",
                   " can be trained on: `trainer data` says why"));
}

// An error of `value` becomes one about `field`.
template <typename T>
absl::StatusOr<T> OfField(const std::string& field, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return FieldError(field, value.status().message());
}

// Tensor `name` of the batch in this shape; reuses an existing one if it fits.
template <typename T = int64_t>
T* Room(const char* name, at::IntArrayRef shape, Batch* batch) {
  at::Tensor& tensor = (*batch)[name];
  if (!tensor.defined() || tensor.sizes() != shape) {
    tensor = at::empty(shape, c10::CppTypeToScalarType<T>::value);
  }
  return tensor.mutable_data_ptr<T>();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Chat::Data>> Chat::WithoutSources(
    const Config& config, std::shared_ptr<const Tokenizer> tokenizer) {
  auto data = std::make_shared<Data>();
  CAPSTAN_ASSIGN_OR_RETURN(data->config, Complete(config));
  data->default_length = config.max_length() == 0;
  data->tokenizer = std::move(tokenizer);
  CAPSTAN_ASSIGN_OR_RETURN(data->kind, KindOfBatches(data->config));
  CAPSTAN_RETURN_IF_ERROR(ChooseTemplate(data.get()));
  const Tokenizer::SpecialIds ids = data->tokenizer->special_ids();
  // Any id will do: nothing is trained on it or attends to it.
  data->pad = std::max<int64_t>(0, ids.pad >= 0 ? ids.pad : ids.eos);
  return data;
}

absl::StatusOr<std::unique_ptr<Chat>> Chat::Create(
    const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
    uint64_t tokenizer_hash) {
  CAPSTAN_ASSIGN_OR_RETURN(std::shared_ptr<Data> data,
                           WithoutSources(config, std::move(tokenizer)));
  CAPSTAN_RETURN_IF_ERROR(OpenSources(tokenizer_hash, data.get()));
  const Part part = data->config.part();
  const bool is_training = part == TRAINING;
  CAPSTAN_ASSIGN_OR_RETURN(Mixture mixture, Mix(*data, part, is_training));
  return std::unique_ptr<Chat>(
      new Chat(std::move(data), part, is_training, std::move(mixture)));
}

absl::Status Chat::ChooseTemplate(Data* data) {
  const std::string& name = data->config.chat_template();
  const std::string& file = data->config.chat_template_file();
  if (!name.empty() && !file.empty()) {
    return FieldError("chat_template_file",
                      "can't be set together with chat_template");
  }
  if (ChatTemplate::IsFile(name)) {
    return FieldError("chat_template",
                      "is a template's name: set chat_template_file to a file");
  }
  absl::StatusOr<std::unique_ptr<ChatTemplate>> found =
      file.empty() ? ChatTemplate::Find(name, *data->tokenizer)
                   : ChatTemplate::FromFile(file, *data->tokenizer);
  const std::string& fallback = data->config.fallback_template();
  if (name.empty() && file.empty() && !fallback.empty() &&
      data->tokenizer->chat_template().empty()) {
    absl::StatusOr<std::unique_ptr<ChatTemplate>> other =
        ChatTemplate::Named(fallback);
    if (!other.ok()) {
      return FieldError("fallback_template", other.status().message());
    }
    if ((*other)->Check(*data->tokenizer).ok()) found = std::move(other);
  }
  if (!found.ok() && name.empty() && file.empty()) {
    if (!data->config.chat_template_kwargs().empty()) {
      return FieldError("chat_template_kwargs", found.status().message());
    }
    // Not needed for plain texts.
    data->no_template = WithMessage(
        found.status(), absl::StrCat(found.status().message(), kChatMl));
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      data->chat_template,
      OfField(file.empty() ? "chat_template" : "chat_template_file",
              std::move(found)));
  const absl::Status fits = data->chat_template->Check(*data->tokenizer);
  if (!fits.ok()) {
    return FieldError("chat_template", absl::StrCat(fits.message(), kChatMl));
  }
  const absl::Status known = CheckChatVariables(
      data->config.chat_template_kwargs(), *data->chat_template);
  if (!known.ok()) return FieldError("chat_template_kwargs", known.message());
  if (data->chat_template->jinja() != data->tokenizer->chat_template()) {
    data->tokenizer =
        WithChatTemplate(std::move(data->tokenizer), *data->chat_template);
  }
  return absl::OkStatus();
}

absl::Status Chat::OpenSources(uint64_t tokenizer_hash, Data* data) {
  const Config& config = data->config;
  for (int i = 0; i < config.source_size(); ++i) {
    const Source& source = config.source(i);
    OpenedSource opened;
    opened.kind = source.kind();
    const std::string field =
        config.path().empty() ? absl::StrCat("source[", i, "].path") : "path";
    const bool cuts = CutsRows(config.packing());
    opened.encoder = std::make_unique<RowEncoder>(
        data->tokenizer.get(), data->chat_template.get(), data->no_template,
        source.loss_on(), cuts ? kMostUncut : config.max_length(),
        config.chat_template_kwargs(), config.truncation());
    CAPSTAN_ASSIGN_OR_RETURN(
        SourceRows rows,
        OfField(field, SourceRows::Open(source.path(),
                                        {source.kind(), config.bad_rows(),
                                         opened.encoder.get(), cuts},
                                        tokenizer_hash)));
    opened.rows = std::make_unique<SourceRows>(std::move(rows));
    CAPSTAN_RETURN_IF_ERROR(
        CheckTrainedShare(*opened.rows, config.min_trained_share()));
    absl::StatusOr<SampleTable> samples =
        SampleTable::Create(opened.rows.get(), config);
    if (!samples.ok()) {
      return FieldError(
          config.has_split() ? "split" : "validation_fraction",
          absl::StrCat(source.path(), ": ", samples.status().message()));
    }
    opened.samples = std::make_unique<SampleTable>(*std::move(samples));
    data->sources.push_back(std::move(opened));
  }
  return absl::OkStatus();
}

absl::StatusOr<Mixture> Chat::Mix(const Data& data, Part part, bool weighted) {
  std::vector<int64_t> sizes;
  std::vector<double> weights;
  int64_t all = 0;
  for (int i = 0; i < data.config.source_size(); ++i) {
    sizes.push_back(data.sources[i].samples->size(part));
    all += sizes.back();
    const double weight = data.config.source(i).weight();
    if (weighted && weight > 0) weights.push_back(weight);
  }
  if (all == 0) {
    return FieldError("max_length",
                      absl::StrCat("leaves no sample of ",
                                   data.config.max_length(), " tokens"));
  }
  return OfField("source", Mixture::Create(sizes, weights, data.config.seed(),
                                           data.config.epoch_samples()));
}

absl::StatusOr<std::unique_ptr<DatasetReader>> Chat::Validation() const {
  const Config& config = data_->config;
  if (!is_training_ ||
      (config.validation_fraction() == 0 && config.split().validation() == 0)) {
    return nullptr;
  }
  CAPSTAN_ASSIGN_OR_RETURN(Mixture mixture, Mix(*data_, VALIDATION, false));
  return std::unique_ptr<DatasetReader>(
      new Chat(data_, VALIDATION, false, std::move(mixture)));
}

int64_t Chat::RowLength(int64_t index) const {
  return data_->config.packing() != NONE ? 0 : PlaceOf(index).row.tokens;
}

SourceRows::Place Chat::PlaceOf(int64_t index) const {
  const Mixture::Draw draw = mixture_.At(index);
  const OpenedSource& source = data_->sources[draw.source];
  return source.rows->At(source.samples->Row(part_, draw.sample));
}

absl::Status Chat::CheckIndices(absl::Span<const int64_t> indices) const {
  for (int64_t index : indices) {
    if (index >= 0 && (index < size() || draws_anew())) continue;
    return absl::OutOfRangeError(absl::StrCat(data_->config.source(0).path(),
                                              ": there is no sample ", index,
                                              ", only 0 to ", size() - 1));
  }
  return absl::OkStatus();
}

absl::Status Chat::Read(absl::Span<const int64_t> indices, Batch* batch) const {
  CAPSTAN_RETURN_IF_ERROR(CheckIndices(indices));
  const bool packed = data_->config.packing() != NONE;
  const bool documents = packed && data_->config.packing() != WRAPPED;
  Out out{};
  out.length = packed ? data_->config.max_length() : 0;
  std::vector<Pair> pairs_read;
  if (pairs()) {
    for (const int64_t index : indices) {
      CAPSTAN_ASSIGN_OR_RETURN(Pair pair, ReadPair(index));
      for (const TokenRow& text : pair.texts) {
        out.length =
            std::max(out.length, static_cast<int64_t>(text.ids.size()));
      }
      pairs_read.push_back(std::move(pair));
    }
  } else if (!packed) {
    for (int64_t index : indices) {
      out.length = std::max(out.length, RowLength(index));
    }
    out.length = std::min(out.length, data_->config.max_length());
  }
  const std::array<int64_t, 2> shape = {
      texts() * static_cast<int64_t>(indices.size()), out.length};
  out.ids = Room(kInputIds, shape, batch);
  out.labels = prompts() ? nullptr : Room(kLabels, shape, batch);
  int64_t* tokens = Room(kTokenCounts, shape[0], batch);
  if (documents) {
    out.positions = Room(kPositions, shape, batch);
  } else {
    batch->erase(kPositions);
  }
  if (prompts()) batch->erase(kLabels);
  if (!prompts()) batch->erase(kRowText);
  if (!pairs()) batch->erase(kPairKeys);
  if (data_->kind != UNPAIRED) batch->erase(kDesirable);
  if (data_->kind != PREFERENCE) batch->erase(kMargins);
  if (pairs()) WritePairs(pairs_read, out, batch);
  for (int64_t index : indices) {
    if (pairs()) break;
    CAPSTAN_ASSIGN_OR_RETURN(*tokens++, ReadSample(index, out));
    out.ids += out.length;
    if (out.labels != nullptr) out.labels += out.length;
    if (documents) out.positions += out.length;
  }
  // Behind the checks of ReadRow.
  if (prompts()) WriteRowTexts(indices, batch);
  for (const OpenedSource& source : data_->sources) {
    CAPSTAN_RETURN_IF_ERROR(source.rows->Check());
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Chat::ReadSample(int64_t index, const Out& out) const {
  const Mixture::Draw draw = mixture_.At(index);
  const OpenedSource& source = data_->sources[draw.source];
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t at,
                           CutsRows(data_->config.packing())
                               ? ReadPieces(source, draw.sample, out)
                               : ReadRows(source, draw.sample, out));
  std::fill(out.ids + at, out.ids + out.length, data_->pad);
  if (out.labels != nullptr) {
    std::fill(out.labels + at, out.labels + out.length, kIgnoredTarget);
  }
  if (out.positions != nullptr) {
    std::iota(out.positions + at, out.positions + out.length, 0);
  }
  return at;
}

absl::StatusOr<int64_t> Chat::ReadRows(const OpenedSource& source,
                                       int64_t sample, const Out& out) const {
  int64_t at = 0;
  for (const uint32_t row : source.samples->Rows(part_, sample)) {
    CAPSTAN_ASSIGN_OR_RETURN(const RowReader* const reader,
                             ReadRow(source, row));
    const TokenRow* const tokens = &reader->tokens;
    const auto count = static_cast<int64_t>(tokens->ids.size());
    if (count > out.length - at) return Changed(*source.rows);
    std::copy_n(tokens->ids.begin(), count, out.ids + at);
    if (out.labels != nullptr) {
      std::copy_n(tokens->labels.begin(), count, out.labels + at);
    }
    if (out.positions != nullptr) {
      // Nothing in this row predicts its first token.
      out.labels[at] = kIgnoredTarget;
      std::iota(out.positions + at, out.positions + at + count, 0);
    }
    at += count;
  }
  return at;
}

absl::StatusOr<int64_t> Chat::ReadPieces(const OpenedSource& source,
                                         int64_t sample, const Out& out) const {
  const auto pieces = source.samples->Pieces(part_, sample);
  if (pieces.empty()) return Changed(*source.rows);
  const int64_t vocab = data_->tokenizer->vocab_size();
  int64_t at = 0;
  for (const absl::Span<const uint32_t> piece : pieces) {
    const int64_t begin = at;
    for (const uint32_t token : piece) {
      const int64_t id = token & ~kUntrained;
      if (id >= vocab) return Changed(*source.rows);
      out.ids[at] = id;
      out.labels[at++] = id == token ? id : kIgnoredTarget;
    }
    if (out.positions == nullptr) continue;
    out.labels[begin] = kIgnoredTarget;
    std::iota(out.positions + begin, out.positions + at, 0);
  }
  return at;
}

absl::StatusOr<Chat::Pair> Chat::ReadPair(int64_t index) const {
  const Mixture::Draw draw = mixture_.At(index);
  const OpenedSource& source = data_->sources[draw.source];
  const size_t row = source.samples->Row(part_, draw.sample);
  CAPSTAN_ASSIGN_OR_RETURN(const RowReader* reader, ReadRow(source, row));
  Pair pair;
  pair.texts = {reader->tokens, reader->rejected};
  pair.desirable = reader->row.desirable;
  pair.margin = reader->row.margin;
  if (data_->kind == PREFERENCE) return pair;
  const auto completion = [](const TokenRow& text) {
    return std::find_if(text.labels.begin(), text.labels.end(),
                        [](int64_t label) { return label >= 0; }) -
           text.labels.begin();
  };
  const auto prompt = [&completion](const TokenRow& text) {
    return absl::MakeSpan(text.ids).first(completion(text));
  };
  // An answer to the same prompt, as rows made of pairs have it next to each
  // other, would be no mismatch.
  const size_t size = source.rows->size();
  for (size_t back = 1; back <= kFarthestMismatch; ++back) {
    CAPSTAN_ASSIGN_OR_RETURN(
        reader, ReadRow(source, (row + size - back % size) % size));
    if (prompt(reader->tokens) != prompt(pair.texts[0])) break;
  }
  TokenRow& other = pair.texts[1];
  other = pair.texts[0];
  for (auto TokenRow::*part : {&TokenRow::ids, &TokenRow::labels}) {
    std::vector<int64_t>& to = other.*part;
    const std::vector<int64_t>& from = reader->tokens.*part;
    to.resize(completion(pair.texts[0]));
    to.insert(to.end(), from.begin() + completion(reader->tokens), from.end());
  }
  other.Cut(data_->config.max_length(), data_->config.truncation());
  return pair;
}

// The rows of a pair: [index, n + index].
void Chat::WritePairs(absl::Span<const Pair> pairs, const Out& out,
                      Batch* batch) const {
  const auto n = static_cast<int64_t>(pairs.size());
  int64_t* const tokens = Room(kTokenCounts, 2 * n, batch);
  int64_t* const keys = Room(kPairKeys, n, batch);
  int64_t* const desirable =
      data_->kind == UNPAIRED ? Room(kDesirable, n, batch) : nullptr;
  float* const margins =
      data_->kind == PREFERENCE ? Room<float>(kMargins, n, batch) : nullptr;
  for (int64_t i = 0; i < n; ++i) {
    CacheKey key;
    for (const int64_t row : {i, n + i}) {
      const TokenRow& text = pairs[i].texts[row == i ? 0 : 1];
      int64_t* const ids = out.ids + row * out.length;
      int64_t* const labels = out.labels + row * out.length;
      std::fill(std::copy(text.ids.begin(), text.ids.end(), ids),
                ids + out.length, data_->pad);
      std::fill(std::copy(text.labels.begin(), text.labels.end(), labels),
                labels + out.length, kIgnoredTarget);
      tokens[row] = static_cast<int64_t>(text.ids.size());
      key.Add(BytesOf(text.ids.data(), text.ids.size()))
          .Add(BytesOf(text.labels.data(), text.labels.size()));
    }
    keys[i] = static_cast<int64_t>(key.hash());
    if (desirable != nullptr) desirable[i] = pairs[i].desirable ? 1 : 0;
    if (margins != nullptr) margins[i] = static_cast<float>(pairs[i].margin);
  }
}

void Chat::WriteRowTexts(absl::Span<const int64_t> indices,
                         Batch* batch) const {
  std::vector<absl::string_view> texts;
  int64_t longest = 0;
  for (const int64_t index : indices) {
    const SourceRows::Place place = PlaceOf(index);
    texts.push_back(
        place.file->file.text.substr(place.row.offset, place.row.bytes));
    longest = std::max(longest, static_cast<int64_t>(texts.back().size()));
  }
  const std::array<int64_t, 2> shape = {static_cast<int64_t>(texts.size()),
                                        longest};
  uint8_t* to = Room<uint8_t>(kRowText, shape, batch);
  for (const absl::string_view text : texts) {
    std::fill(std::copy(text.begin(), text.end(), to), to + longest, 0);
    to += longest;
  }
}

absl::StatusOr<const RowReader*> Chat::ReadRow(const OpenedSource& source,
                                               size_t row) {
  thread_local RowReader reader;
  const SourceRows::Place place = source.rows->At(row);
  const SourceFile& file = place.file->file;
  const IndexedRow& indexed = place.row;
  const absl::string_view text = file.text;
  absl::Status status = absl::DataLossError("a row is somewhere else");
  if (indexed.offset <= text.size() &&
      indexed.bytes <= text.size() - indexed.offset) {
    const absl::string_view json = text.substr(indexed.offset, indexed.bytes);
    status = reader.Read(json, source.kind, *source.encoder);
    if (status.ok()) {
      if (reader.length() == indexed.tokens && HashOf(json) == indexed.hash) {
        return &reader;
      }
      status = absl::DataLossError("a row has another text");
    }
  }
  CAPSTAN_RETURN_IF_ERROR(file.file->Check());
  return absl::DataLossError(absl::StrCat(
      file.PlaceOf(
          LineOf(text, std::min<uint64_t>(indexed.offset, text.size()))),
      ": the file has changed since the run began (", status.message(), ")"));
}

std::vector<int64_t> Chat::PromptIds(absl::string_view text) const {
  const bool chats =
      std::any_of(data_->sources.begin(), data_->sources.end(),
                  [](const OpenedSource& s) { return s.rows->has_chats(); });
  if (!chats) return data_->tokenizer->Encode(text);
  ChatInput input;
  const std::vector<ChatMessage> messages = {{"user", std::string(text)}};
  input.messages = messages;
  input.variables = data_->config.chat_template_kwargs();
  input.generation_prompt = true;
  const absl::StatusOr<RenderedChat> turn =
      data_->chat_template->RenderInput(input);
  if (!turn.ok()) {
    throw std::invalid_argument(std::string(turn.status().message()));
  }
  return data_->tokenizer->Encode(turn->text);
}

absl::StatusOr<std::string> Chat::Digest() const {
  std::vector<uint64_t> hashes;
  for (const OpenedSource& source : data_->sources) {
    // Rows that move from one source to the next are other samples.
    hashes.push_back(source.rows->size());
    for (const SourceRows::File& file : source.rows->files()) {
      for (const IndexedRow& row : file.index->rows()) {
        hashes.push_back(row.hash);
      }
    }
    CAPSTAN_RETURN_IF_ERROR(source.rows->Check());
  }
  return absl::StrCat(hashes.size() - data_->sources.size(),
                      " rows, hashes of ", DigestOfValues(hashes));
}

absl::StatusOr<Chat::HashedTokenizer> Chat::OpenTokenizer(
    const Config& config) {
  CAPSTAN_ASSIGN_OR_RETURN(ModelTokenizer tokenizer,
                           TokenizerToRead(config.tokenizer(), "tokenizer"));
  if (tokenizer.folder.empty()) {
    return FieldError("tokenizer",
                      "is not set, and the model brings none: name a folder "
                      "with a tokenizer.json");
  }
  CacheKey key;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "special_tokens_map.json", "added_tokens.json", "vocab.json",
        "merges.txt", "config.json"}) {
    const auto file =
        MappedFile::Open(absl::StrCat(tokenizer.folder, "/", name));
    key.Add(file.ok() ? (*file)->bytes() : "");
  }
  return HashedTokenizer{std::move(tokenizer.tokenizer), key.hash()};
}

absl::StatusOr<std::unique_ptr<Chat>> Chat::Create(const Config& config) {
  CAPSTAN_ASSIGN_OR_RETURN(HashedTokenizer tokenizer, OpenTokenizer(config));
  return Create(config, std::move(tokenizer.tokenizer), tokenizer.hash);
}

CAPSTAN_PLUGIN(DatasetReader, Chat, capstan::chat::Config,
               "conversations, instructions and texts (JSON) for fine-tuning");

}  // namespace capstan::chat
