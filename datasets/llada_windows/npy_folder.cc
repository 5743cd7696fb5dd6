// SPDX-License-Identifier: Apache-2.0
//
// Windows in the files of a folder, in the formats of the Python program:
// train_data.npy, val_data.npy, metadata.json, vocab.json.
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/npy.h"
#include "base/status.h"
#include "datasets/llada_windows/characters.h"
#include "datasets/llada_windows/window_data.h"

namespace capstan::llada_windows {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class NpyWindows final : public Windows {
 public:
  explicit NpyWindows(std::shared_ptr<const NpyArray> array)
      : array_(std::move(array)) {}
  int64_t size() const override { return array_->shape()[0]; }
  void Read(int64_t i, int64_t* out) const override {
    const int64_t length = array_->shape()[1];
    array_->Read(i * length, length, out);
  }

 private:
  const std::shared_ptr<const NpyArray> array_;
};

absl::StatusOr<Json> ReadJson(const std::string& path) {
  if (!fs::is_regular_file(path)) {
    return absl::NotFoundError(
        absl::StrCat(path, " is missing: `trainer llada-data` writes it"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  Json json = ParseJson<Json>(text);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " isn't a JSON object"));
  }
  return json;
}

absl::StatusOr<int64_t> Integer(const Json& json, const std::string& path,
                                const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no whole number \"", key, "\""));
  }
  const absl::optional<int64_t> integer = JsonInteger(*found);
  if (!integer.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", key, " must be a whole number below 2^63, is ",
                     found->dump()));
  }
  return *integer;
}

struct Metadata {
  std::string path;
  int64_t sequence_length = 0;
  int64_t vocab_size = 0;
  int64_t train_samples = 0;
  int64_t val_samples = 0;
  int64_t total_tokens = 0;
  int64_t mask_token = 0;
  int64_t bos_token = 0;
  int64_t eos_token = 0;
  int64_t pad_token = 0;
};

absl::StatusOr<Metadata> ReadMetadata(const std::string& folder) {
  Metadata data;
  data.path = folder + "/metadata.json";
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ReadJson(data.path));
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, int64_t*>>{
           {"sequence_length", &data.sequence_length},
           {"vocab_size", &data.vocab_size},
           {"train_samples", &data.train_samples},
           {"val_samples", &data.val_samples},
           {"total_tokens", &data.total_tokens},
           {"mask_token", &data.mask_token},
           {"bos_token", &data.bos_token},
           {"eos_token", &data.eos_token},
           {"pad_token", &data.pad_token}}) {
    CAPSTAN_ASSIGN_OR_RETURN(*value, Integer(json, data.path, key));
  }
  if (data.vocab_size < 1 ||
      data.vocab_size > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        data.path, ": a vocab_size of ", data.vocab_size, " can't be"));
  }
  if (data.train_samples < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(data.path, ": there are no train_samples"));
  }
  return data;
}

// Maps the array of windows and checks each id once.
absl::StatusOr<std::shared_ptr<const Windows>> OpenWindows(
    const std::string& path, int64_t samples, const Metadata& metadata) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::shared_ptr<const NpyArray> array,
                           NpyArray::Open(path));
  if (array->type() != NpyType::kInt64) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds ", NpyTypeName(array->type()),
                     ", not int64: save it with array.astype('<i8')"));
  }
  if (array->shape() !=
      std::vector<int64_t>({samples, metadata.sequence_length})) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has the shape ", array->ShapeText(), ", but ", metadata.path,
        " says [", samples, ", ", metadata.sequence_length, "]"));
  }
  std::vector<int64_t> row(metadata.sequence_length);
  for (int64_t i = 0; i < samples; ++i) {
    array->Read(i * metadata.sequence_length, metadata.sequence_length,
                row.data());
    for (int64_t id : row) {
      if (id >= 0 && id < metadata.vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": window ", i, " has the id ", id,
                       ", which isn't in the vocabulary of ",
                       metadata.vocab_size, " that ", metadata.path, " says"));
    }
  }
  return std::make_shared<NpyWindows>(array);
}

// "char_to_id" of a vocab.json.
absl::StatusOr<std::map<uint32_t, int64_t>> ReadCharacters(
    const std::string& path, const Metadata& metadata) {
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ReadJson(path));
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t vocab_size,
                           Integer(json, path, "vocab_size"));
  if (vocab_size != metadata.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " says vocab_size ", vocab_size, ", but ",
                     metadata.path, " ", metadata.vocab_size));
  }
  const auto characters = json.find("char_to_id");
  if (characters == json.end() || !characters->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no object \"char_to_id\""));
  }
  std::map<uint32_t, int64_t> ids;
  std::vector<bool> taken(vocab_size);
  for (const auto& [text, value] : characters->items()) {
    size_t at = 0;
    const int64_t code = text.empty() ? -1 : NextCharacter(text, &at);
    if (code < 0 || at != text.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": \"", text, "\" in char_to_id isn't one character"));
    }
    const int64_t id = JsonInteger(value).value_or(-1);
    if (id < kFirstCharacter || id >= vocab_size || taken[id]) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": \"", text, "\" must have an id of its own from ",
          kFirstCharacter, " to ", vocab_size - 1, ", has ", value.dump()));
    }
    taken[id] = true;
    ids[static_cast<uint32_t>(code)] = id;
  }
  return ids;
}

absl::Status OpenCharacters(const std::string& path, const Metadata& metadata,
                            WindowData* data) {
  for (const auto& [name, token, id] :
       std::initializer_list<std::tuple<const char*, int64_t, int64_t>>{
           {"bos_token", metadata.bos_token, kBos},
           {"eos_token", metadata.eos_token, kEos},
           {"pad_token", metadata.pad_token, kPad}}) {
    if (token == id) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        metadata.path, ": ", name, " of characters is ", id, ", not ", token));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const auto ids, ReadCharacters(path, metadata));
  std::vector<bool> taken(metadata.vocab_size);
  for (const auto& [code, id] : ids) taken[id] = true;
  const int64_t spare = metadata.vocab_size - 1;
  data->mask = metadata.mask_token;
  if (data->mask < 0 || data->mask >= metadata.vocab_size) {
    data->mask = spare;
    data->notes.push_back(
        absl::StrCat(metadata.path, ": the mask token ", metadata.mask_token,
                     " isn't in its vocabulary of ", metadata.vocab_size,
                     "; the model's own mask_token_id is used."));
  }
  if (data->mask < kFirstCharacter || taken[data->mask]) {
    return absl::InvalidArgumentError(
        absl::StrCat(metadata.path, ": the mask needs an id of its own, but ",
                     data->mask, " of the vocabulary of ", metadata.vocab_size,
                     " is a character or a special token"));
  }
  data->tokenizer = std::make_shared<const CharacterTokenizer>(
      ids, data->mask, metadata.vocab_size);
  return absl::OkStatus();
}

absl::Status OpenTokenizer(const std::string& folder, const Metadata& metadata,
                           WindowData* data) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(folder);
  if (absl::IsNotFound(tokenizer.status())) {
    return absl::NotFoundError(
        absl::StrCat(folder, " has neither a vocab.json nor a tokenizer.json"));
  }
  CAPSTAN_RETURN_IF_ERROR(tokenizer.status());
  if ((*tokenizer)->vocab_size() > metadata.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        metadata.path, " says vocab_size ", metadata.vocab_size, ", but ",
        folder, "/tokenizer.json has ", (*tokenizer)->vocab_size(), " tokens"));
  }
  data->tokenizer = *std::move(tokenizer);
  return absl::OkStatus();
}

}  // namespace

bool HasCharacters(const std::string& folder) {
  return fs::is_regular_file(folder + "/vocab.json");
}

absl::StatusOr<WindowData> OpenNpyFolder(const std::string& folder) {
  if (!fs::is_directory(folder)) {
    return absl::NotFoundError(absl::StrCat(folder, " is not a folder"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const Metadata metadata, ReadMetadata(folder));
  WindowData data;
  data.sequence_length = metadata.sequence_length;
  data.total_tokens = metadata.total_tokens;
  CAPSTAN_RETURN_IF_ERROR(
      HasCharacters(folder)
          ? OpenCharacters(folder + "/vocab.json", metadata, &data)
          : OpenTokenizer(folder, metadata, &data));
  CAPSTAN_ASSIGN_OR_RETURN(data.train,
                           OpenWindows(folder + "/train_data.npy",
                                       metadata.train_samples, metadata));
  if (metadata.val_samples > 0) {
    CAPSTAN_ASSIGN_OR_RETURN(
        data.validation,
        OpenWindows(folder + "/val_data.npy", metadata.val_samples, metadata));
  }
  return data;
}

}  // namespace capstan::llada_windows
