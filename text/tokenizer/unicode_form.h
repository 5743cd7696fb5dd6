// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_UNICODE_FORM_H_
#define CAPSTAN_TEXT_TOKENIZER_UNICODE_FORM_H_

#include <memory>

#include "text/tokenizer/normalizer.h"

namespace capstan {
namespace tokenizer {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// The normalization forms of Unicode's Standard Annex 15.
std::unique_ptr<Normalizer> NewUnicodeForm(UnicodeForm form);

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_UNICODE_FORM_H_
