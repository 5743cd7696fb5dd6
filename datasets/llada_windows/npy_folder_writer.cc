// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/npy.h"
#include "base/status.h"
#include "datasets/llada_windows/characters.h"
#include "datasets/llada_windows/window_data.h"

namespace capstan::llada_windows {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

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

}  // namespace

absl::Status WriteNpyFolder(const WindowData& data, const std::string& text,
                            const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(folder, " can't be made: ", error.message()));
  }
  CAPSTAN_RETURN_IF_ERROR(WriteWindows(*data.train, data.sequence_length,
                                       folder + "/train_data.npy"));
  CAPSTAN_RETURN_IF_ERROR(WriteWindows(*data.validation, data.sequence_length,
                                       folder + "/val_data.npy"));
  fs::copy_file(text, folder + "/shakespeare_raw.txt",
                fs::copy_options::overwrite_existing, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        folder, "/shakespeare_raw.txt can't be written: ", error.message()));
  }
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
