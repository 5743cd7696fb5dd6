// SPDX-License-Identifier: Apache-2.0
//
// What anyone may send to `trainer serve`. The first byte says to which path.
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "desk/serve/openai_request.h"
#include "glog/logging.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto api =
      data[0] % 2 == 0 ? capstan::Api::kChat : capstan::Api::kCompletions;
  const auto request = capstan::ParseCompletionRequest(
      api,
      absl::string_view(reinterpret_cast<const char*>(data + 1), size - 1));
  if (!request.ok()) {
    CHECK(absl::IsInvalidArgument(request.status())) << request.status();
    CHECK(!request.status().message().empty());
    return 0;
  }
  // What the engine takes for granted.
  CHECK_GE(request->prompt_count(), 1u);
  CHECK_GE(request->choices, 1);
  CHECK_LE(request->choices * static_cast<int64_t>(request->prompt_count()),
           capstan::kMostTexts);
  CHECK_LE(request->logprobs, capstan::kMostLogprobs);
  CHECK_GE(request->sample.max_new_tokens, 0);
  for (const std::string& stop : request->stop) CHECK(!stop.empty());
  for (const auto& ids : request->prompt_ids) CHECK(!ids.empty());
  return 0;
}
