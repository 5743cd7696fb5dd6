// SPDX-License-Identifier: Apache-2.0
//
// A tokenizer.json's regular expression, a newline, and a text.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/regex.h"

namespace {

using capstan::tokenizer::Regex;

void FindAll(const Regex& regex, absl::string_view text) {
  capstan::tokenizer::RegexState state;
  state.budget.Begin(text.size());
  capstan::tokenizer::RegexMatches matches(regex, text, &state);
  size_t begin = 0;
  size_t end = 0;
  size_t last = 0;
  size_t found = 0;
  while (matches.Next(&begin, &end)) {
    CHECK_LE(last, begin);
    CHECK_LE(begin, end);
    CHECK_LE(end, text.size());
    last = end;
    CHECK_LE(++found, text.size() + 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t newline = std::min(input.find('\n'), input.size());
  const auto regex = Regex::Compile(input.substr(0, newline));
  if (!regex.ok()) return 0;
  capstan::tokenizer::Alignment alignment;
  const std::string text = capstan::tokenizer::ToUtf8(
      input.substr(std::min(newline + 1, input.size())), &alignment);
  try {
    FindAll(**regex, text);
  } catch (const std::runtime_error&) {
    // A limit.
  }
  return 0;
}
