// SPDX-License-Identifier: Apache-2.0
//
// Windows in the files of a folder, in the formats of the Python program:
// train_data.npy, val_data.npy, metadata.json, vocab.json.
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/files.h"
#include "base/json.h"
#include "base/npy.h"
#include "base/status.h"
#include "plugins/llada/windows/characters.h"
#include "plugins/llada/windows/window_data.h"

namespace capstan::llada_windows {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

template <typename... Parts>
absl::Status Bad(const Parts&... problem) {
  return absl::InvalidArgumentError(absl::StrCat(problem...));
}

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
  if (!IsRegularFile(path)) {
    return absl::NotFoundError(
        absl::StrCat(path, " is missing: `trainer llada-data` writes it"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  return ParseObject(path, text);
}

struct Metadata {
  std::string path;
  int64_t sequence_length;
  int64_t vocab_size;
  int64_t train_samples;
  int64_t val_samples;
  int64_t total_tokens;
  int64_t mask_token;
  int64_t bos_token;
  int64_t eos_token;
  int64_t pad_token;
};

absl::StatusOr<Metadata> ReadMetadata(const std::string& folder) {
  const std::string path = folder + "/metadata.json";
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ReadJson(path));
  JsonKeys keys(path, json);
  const auto number = [&](const char* key) {
    return keys.Int(key, absl::nullopt);
  };
  const Metadata data = {path,
                         number("sequence_length"),
                         number("vocab_size"),
                         number("train_samples"),
                         number("val_samples"),
                         number("total_tokens"),
                         number("mask_token"),
                         number("bos_token"),
                         number("eos_token"),
                         number("pad_token")};
  if (data.vocab_size < 1 ||
      data.vocab_size > std::numeric_limits<int32_t>::max()) {
    keys.Fail("vocab_size",
              absl::StrCat("must be from 1 to 2^31 - 1, is ", data.vocab_size));
  }
  if (data.train_samples < 1) {
    keys.Fail("train_samples",
              absl::StrCat("must be at least 1, is ", data.train_samples));
  }
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  return data;
}

// Maps the array of windows and checks each id once.
absl::StatusOr<std::shared_ptr<const Windows>> OpenWindows(
    const std::string& path, int64_t samples, const Metadata& metadata) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::shared_ptr<const NpyArray> array,
                           NpyArray::Open(path));
  if (array->type() != NpyType::kInt64) {
    return Bad(path, " holds ", NpyTypeName(array->type()),
               ", not int64: save it with array.astype('<i8')");
  }
  if (array->shape() !=
      std::vector<int64_t>({samples, metadata.sequence_length})) {
    return Bad(path, " has the shape ", array->ShapeText(), ", but ",
               metadata.path, " says [", samples, ", ",
               metadata.sequence_length, "]");
  }
  std::vector<int64_t> row(metadata.sequence_length);
  for (int64_t i = 0; i < samples; ++i) {
    array->Read(i * metadata.sequence_length, metadata.sequence_length,
                row.data());
    for (int64_t id : row) {
      if (id >= 0 && id < metadata.vocab_size) continue;
      return Bad(path, ": window ", i, " has the id ", id,
                 ", which isn't in the vocabulary of ", metadata.vocab_size,
                 " that ", metadata.path, " says");
    }
  }
  return std::make_shared<NpyWindows>(array);
}

// "char_to_id" of a vocab.json.
absl::StatusOr<std::map<uint32_t, int64_t>> ReadCharacters(
    const std::string& path, const Metadata& metadata) {
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ReadJson(path));
  JsonKeys keys(path, json);
  const int64_t vocab_size = keys.Int("vocab_size", absl::nullopt);
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  if (vocab_size != metadata.vocab_size) {
    return Bad(path, " says vocab_size ", vocab_size, ", but ", metadata.path,
               " ", metadata.vocab_size);
  }
  const auto characters = json.find("char_to_id");
  if (characters == json.end() || !characters->is_object()) {
    return Bad(path, " has no object \"char_to_id\"");
  }
  std::map<uint32_t, int64_t> ids;
  std::vector<bool> taken(vocab_size);
  for (const auto& [text, value] : characters->items()) {
    size_t at = 0;
    const int64_t code = text.empty() ? -1 : NextCharacter(text, &at);
    if (code < 0 || at != text.size()) {
      return Bad(path, ": \"", text, "\" in char_to_id isn't one character");
    }
    const int64_t id = JsonInteger(value).value_or(-1);
    if (id < kFirstCharacter || id >= vocab_size || taken[id]) {
      return Bad(path, ": \"", text, "\" must have an id of its own from ",
                 kFirstCharacter, " to ", vocab_size - 1, ", has ",
                 value.dump());
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
    return Bad(metadata.path, ": ", name, " of characters is ", id, ", not ",
               token);
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
    return Bad(metadata.path, ": the mask needs an id of its own, but ",
               data->mask, " of the vocabulary of ", metadata.vocab_size,
               " is a character or a special token");
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
    return Bad(metadata.path, " says vocab_size ", metadata.vocab_size,
               ", but ", folder, "/tokenizer.json has ",
               (*tokenizer)->vocab_size(), " tokens");
  }
  data->tokenizer = *std::move(tokenizer);
  return absl::OkStatus();
}

absl::Status WriteWindows(const Windows& windows, int64_t length,
                          const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<NpyWriter> writer,
      NpyWriter::Create(path, NpyType::kInt64, {windows.size(), length}));
  std::vector<int64_t> row(length);
  for (int64_t i = 0; i < windows.size(); ++i) {
    windows.Read(i, row.data());
    CAPSTAN_RETURN_IF_ERROR(writer->Append(absl::Span<const int64_t>(row)));
  }
  return writer->Close();
}

void AddSpecial(const WindowData& data, Json* json) {
  const Tokenizer::SpecialIds special = data.tokenizer->special_ids();
  // With a model's own tokenizer, the mask is LLaDA's or the model's.
  (*json)["mask_token"] =
      data.mask >= 0 ? data.mask
                     : data.tokenizer->IdOf("<|mdm_mask|>").value_or(-1);
  (*json)["bos_token"] = special.bos;
  (*json)["eos_token"] = special.eos;
  (*json)["pad_token"] = special.pad;
}

absl::Status WriteVocab(const WindowData& data,
                        const CharacterTokenizer& characters,
                        const std::string& path) {
  Json to_id = Json::object();
  Json to_character = Json::object();
  for (const auto& [code, id] : characters.ids()) {
    const std::string text = characters.Decode({id});
    to_id[text] = id;
    to_character[absl::StrCat(id)] = text;
  }
  Json json = {{"char_to_id", to_id},
               {"id_to_char", to_character},
               {"vocab_size", characters.vocab_size()}};
  AddSpecial(data, &json);
  return WriteWholeFile(path, json.dump(2) + "\n");
}

absl::StatusOr<std::string> DigestOfArrays(const std::string& folder,
                                           bool both) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto train,
                           MappedFile::Open(folder + "/train_data.npy"));
  CAPSTAN_ASSIGN_OR_RETURN(std::string digest, DigestOfFile(*train));
  if (!both) return digest;
  CAPSTAN_ASSIGN_OR_RETURN(const auto validation,
                           MappedFile::Open(folder + "/val_data.npy"));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string rest, DigestOfFile(*validation));
  return absl::StrCat(digest, " + ", rest);
}

}  // namespace

bool HasCharacters(const std::string& folder) {
  return IsRegularFile(folder + "/vocab.json");
}

absl::StatusOr<WindowData> OpenNpyFolder(const std::string& folder) {
  if (!IsFolder(folder)) {
    return absl::NotFoundError(absl::StrCat(folder, " is not a folder"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const Metadata metadata, ReadMetadata(folder));
  WindowData data;
  data.sequence_length = metadata.sequence_length;
  data.total_tokens = metadata.total_tokens;
  data.vocab_size = metadata.vocab_size;
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
  data.digest = [folder, both = data.validation != nullptr] {
    return DigestOfArrays(folder, both);
  };
  return data;
}

absl::Status WriteNpyFolder(const WindowData& data, const std::string& text,
                            const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return WriteError(folder, error.value());
  CAPSTAN_RETURN_IF_ERROR(WriteWindows(*data.train, data.sequence_length,
                                       folder + "/train_data.npy"));
  CAPSTAN_RETURN_IF_ERROR(WriteWindows(*data.validation, data.sequence_length,
                                       folder + "/val_data.npy"));
  const std::string copy = folder + "/shakespeare_raw.txt";
  fs::copy_file(text, copy, fs::copy_options::overwrite_existing, error);
  if (error) return WriteError(copy, error.value());
  // Exactly one of the two identifies the tokens.
  const auto* characters =
      dynamic_cast<const CharacterTokenizer*>(data.tokenizer.get());
  if (characters != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(
        WriteVocab(data, *characters, folder + "/vocab.json"));
  } else {
    fs::remove(folder + "/vocab.json", error);
    CAPSTAN_RETURN_IF_ERROR(data.tokenizer->Save(folder));
  }
  Json json = {{"sequence_length", data.sequence_length},
               {"vocab_size", data.tokenizer->vocab_size()},
               {"train_samples", data.train->size()},
               {"val_samples", data.validation->size()},
               {"total_tokens", data.total_tokens}};
  AddSpecial(data, &json);
  return WriteWholeFile(folder + "/metadata.json", json.dump(2) + "\n");
}

}  // namespace capstan::llada_windows
