// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_TOKENIZER_UNICODE_FORM_H_
#define CAPSTAN_PLUGINS_TOKENIZER_UNICODE_FORM_H_

#include <memory>

#include "plugins/tokenizer/normalizer.h"

namespace capstan {
namespace tokenizer {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// The normalization forms of Unicode's Standard Annex 15.
std::unique_ptr<Normalizer> NewUnicodeForm(UnicodeForm form);

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_TOKENIZER_UNICODE_FORM_H_
