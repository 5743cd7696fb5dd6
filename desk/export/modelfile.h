// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_EXPORT_MODELFILE_H_
#define CAPSTAN_DESK_EXPORT_MODELFILE_H_

#include <string>

#include "plugins/sdk/tokenizer.h"

namespace capstan {

// A Modelfile, for Ollama, of the GGUF file `name` beside it. TEMPLATE and the
// text that ends a turn are there if the tokenizer's chat template is one of a
// known format; else Ollama looks at the file's own.
std::string ModelfileText(const std::string& name, const Tokenizer& tokenizer);

}  // namespace capstan

#endif  // CAPSTAN_DESK_EXPORT_MODELFILE_H_
