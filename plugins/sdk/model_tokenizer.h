// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_MODEL_TOKENIZER_H_
#define CAPSTAN_PLUGINS_SDK_MODEL_TOKENIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

struct ModelTokenizer {
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the data's becomes it
  std::string folder;                          // of its files; "": none
};

// The tokenizer of the model that a reader is created for. Create uses it
// unless the config names one; the core refuses a reader that makes other
// tokens. Called on the thread that creates plugins; constant during a Create.
const ModelTokenizer& CurrentModelTokenizer();

// Returns the tokenizer in `folder`, which a config names in `field`; if "",
// the model's, which may be null. Errors are FieldErrors of `field`.
absl::StatusOr<ModelTokenizer> TokenizerToRead(const std::string& folder,
                                               absl::string_view field);

void SetModelTokenizer(ModelTokenizer tokenizer);  // only for the core

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MODEL_TOKENIZER_H_
