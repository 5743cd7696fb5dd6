// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "datasets/chat/cache_file.h"
#include "datasets/chat/chat.h"
#include "plugins/sdk/plugin.h"

namespace capstan {
namespace chat {

absl::StatusOr<std::unique_ptr<Chat>> Chat::Create(const Config& config) {
  if (config.tokenizer().empty()) {
    return FieldError("tokenizer",
                      "is not set: name a folder with a tokenizer.json");
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(config.tokenizer());
  if (!tokenizer.ok()) {
    return FieldError("tokenizer", tokenizer.status().message());
  }
  // Its tokens depend on nothing else than what is in these.
  CacheKey key;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    const auto file =
        MappedFile::Open(absl::StrCat(config.tokenizer(), "/", name));
    key.Add(file.ok() ? (*file)->bytes() : "");
  }
  return Create(config, *std::move(tokenizer), key.hash());
}

CAPSTAN_PLUGIN(DatasetReader, Chat, capstan::chat::Config,
               "conversations, instructions and texts (JSON) for fine-tuning");

}  // namespace chat
}  // namespace capstan
