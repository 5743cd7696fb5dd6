// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_MODEL_TOKENIZER_H_
#define CAPSTAN_PLUGINS_SDK_MODEL_TOKENIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// The tokenizer that a model's ids belong to.
struct ModelTokenizer {
  // Null: the model has none yet, and the data's becomes its own.
  std::shared_ptr<const Tokenizer> tokenizer;
  // The folder of its files; "" if it has none.
  std::string folder;
};

// The tokenizer of the model that the reader under creation is for. A
// DatasetReader's Create uses it unless the config names one; the core refuses
// a reader whose tokenizer makes other tokens than the model's. Called on the
// thread that creates plugins; constant during a Create.
const ModelTokenizer& CurrentModelTokenizer();

// Returns the tokenizer in `folder`, which a reader's config names in `field`;
// if `folder` is "", the model's, which may be null. Errors are FieldErrors of
// `field`.
absl::StatusOr<ModelTokenizer> TokenizerToRead(const std::string& folder,
                                               absl::string_view field);

// Sets the current tokenizer. Only the core calls this.
void SetModelTokenizer(ModelTokenizer tokenizer);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_MODEL_TOKENIZER_H_
