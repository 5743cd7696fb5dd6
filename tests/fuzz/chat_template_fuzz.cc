// SPDX-License-Identifier: Apache-2.0
//
// A tokenizer's chat template, which is run on its own text.
#include <cstdint>
#include <string>
#include <vector>

#include "glog/logging.h"
#include "plugins/sdk/chat_template.h"
#include "text/chat_template/fake_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string jinja(reinterpret_cast<const char*>(data), size);
  capstan::FakeTokenizer tokenizer({"<s>", "</s>"}, jinja);
  tokenizer.set_special_ids({256, 257, -1});
  const auto found = capstan::ChatTemplate::Recognise(tokenizer);
  if (!found.ok()) {
    CHECK(!found.status().message().empty());
    return 0;
  }
  const std::vector<capstan::ChatMessage> talk = {{"user", jinja},
                                                  {"assistant", jinja}};
  const auto text = (*found)->Render(talk, /*generation_prompt=*/true);
  if (!text.ok()) {
    CHECK(!text.status().message().empty());
    return 0;
  }
  for (const auto& [begin, end] : text->assistant) {
    CHECK_LE(0, begin);
    CHECK_LE(begin, end);
    CHECK_LE(end, static_cast<int64_t>(text->text.size()));
  }
  return 0;
}
