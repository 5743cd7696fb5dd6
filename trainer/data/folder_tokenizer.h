// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_DATA_FOLDER_TOKENIZER_H_
#define CAPSTAN_TRAINER_DATA_FOLDER_TOKENIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "plugins/sdk/dataset.h"

namespace capstan {

// The tokenizer that a Hugging Face folder's tokenizer.json describes: that of
// bytes, as Tokenizer::Save writes it. NOT_FOUND without the file,
// UNIMPLEMENTED for any other tokenizer.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFolderTokenizer(
    const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_DATA_FOLDER_TOKENIZER_H_
