// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/folder_tokenizer.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/byte_tokenizer.h"

namespace capstan {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFolderTokenizer(
    const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("there is no ", path));
  const nlohmann::json json =
      nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  // Whatever else a tokenizer.json says, the byte tokenizer's is known whole.
  if (json == nlohmann::json::parse(ByteTokenizerJson())) {
    return NewByteTokenizer();
  }
  return absl::UnimplementedError(absl::StrCat(
      path,
      " describes a tokenizer other than bytes, which this version "
      "can't run"));
}

}  // namespace capstan
