// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/token_difference.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

// Of what normalizers and pre-tokenizers treat differently: spaces at the
// beginning, in a row and at the end, case, digits, accents composed and not,
// contractions, full width, scripts, lines.
constexpr char kProbe[] =
    "  Hello  World!\tDon't you'll I'M  x=1234567.89;\n\n  fi\u00e9 e\u0301 "
    "\ufb01\uff21 \u65e5\u672c \u0440\u0443\u0441 \U0001f600 a_b-c/d\\e "
    "\"q\" <|x|> \r\n end ";

std::string Quoted(const std::string& token) {
  return token.empty() ? "no token"
                       : absl::StrCat("\"", absl::Utf8SafeCEscape(token), "\"");
}

}  // namespace

std::string TokenDifference(const Tokenizer& a, const Tokenizer& b) {
  const int64_t ids = std::max(a.vocab_size(), b.vocab_size());
  for (int64_t id = 0; id < ids; ++id) {
    const std::string text = a.Decode({id});
    const std::string other = b.Decode({id});
    if (text != other) {
      return absl::StrCat("id ", id, " is ", Quoted(text), " in the one and ",
                          Quoted(other), " in the other");
    }
  }
  const auto differs = [&](const std::string& text) {
    return a.Encode(text) != b.Encode(text);
  };
  for (int64_t id = 0; id < ids; ++id) {
    const std::string text = a.Decode({id});
    if (differs(text)) {
      return absl::StrCat(Quoted(text),
                          " has other tokens in the one than in "
                          "the other");
    }
  }
  return differs(kProbe)
             ? "words are split in other ways in the one than in the other"
             : "";
}

}  // namespace capstan
