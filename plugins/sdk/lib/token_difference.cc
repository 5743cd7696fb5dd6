// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/token_difference.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

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

std::string EndsDifference(const Tokenizer& a, const Tokenizer& b) {
  using SpecialIds = Tokenizer::SpecialIds;
  const SpecialIds of_a = a.special_ids(), of_b = b.special_ids();
  for (const auto& [name, id] : {std::make_pair("begin", &SpecialIds::bos),
                                 std::make_pair("end", &SpecialIds::eos),
                                 std::make_pair("padding", &SpecialIds::pad)}) {
    if (of_a.*id == of_b.*id) continue;
    return absl::StrCat("the ", name, " token is ",
                        Quoted(a.Decode({of_a.*id})), " in the one and ",
                        Quoted(b.Decode({of_b.*id})), " in the other");
  }
  // Around a token that no tokenizer has.
  std::vector<int64_t> by_a = {-1}, by_b = {-1};
  a.AddEnds(&by_a);
  b.AddEnds(&by_b);
  if (by_a != by_b) {
    return "the one adds other tokens at the ends of a text than the other";
  }
  return a.chat_template() == b.chat_template()
             ? ""
             : "the chat template of the one isn't the other's";
}

}  // namespace capstan
