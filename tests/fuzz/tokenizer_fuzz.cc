// SPDX-License-Identifier: Apache-2.0
//
// A tokenizer.json, a tokenizer_config.json and a text, each ended by a 0 byte
// (JSON has none): loading them, and the text's tokens.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "text/tokenizer/hf_tokenizer.h"

namespace {

using capstan::tokenizer::HfTokenizer;

std::string Next(absl::string_view* rest) {
  const size_t end = std::min(rest->find('\0'), rest->size());
  std::string part(rest->substr(0, end));
  rest->remove_prefix(std::min(end + 1, rest->size()));
  return part;
}

void Encode(const HfTokenizer& tokenizer, absl::string_view text) {
  const std::vector<int64_t> ids = tokenizer.Encode(text);
  const capstan::Encoding encoding = tokenizer.EncodeWithPlaces(text);
  CHECK(encoding.ids == ids);
  const auto bytes = static_cast<int64_t>(text.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    CHECK_GE(ids[i], 0);
    CHECK_LT(ids[i], tokenizer.vocab_size());
    CHECK_GE(encoding.begins[i], 0);
    CHECK_LE(encoding.begins[i], encoding.ends[i]);
    CHECK_LE(encoding.ends[i], bytes);
  }
  tokenizer.Decode(ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view rest(reinterpret_cast<const char*>(data), size);
  HfTokenizer::Files files;
  files["tokenizer.json"] = Next(&rest);
  const std::string config = Next(&rest);
  if (!config.empty()) files["tokenizer_config.json"] = config;
  const auto made = HfTokenizer::Make(std::move(files));
  if (!made.ok()) {
    CHECK(!made.status().message().empty());
    return 0;
  }
  try {
    Encode(**made, rest);
  } catch (const std::runtime_error&) {
    // A limit, or an expression that PCRE2 gives up on.
  }
  return 0;
}
