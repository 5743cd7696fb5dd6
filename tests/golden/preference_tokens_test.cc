// SPDX-License-Identifier: Apache-2.0
//
// Tokens of preferences against TRL's (tests/peers/make_dpo_golden.py).
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "datasets/chat/chat.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

TEST(PreferenceTokensTest, AreThoseOfTrl) {
  const Json golden =
      Json::parse(std::ifstream("tests/golden/testdata/dpo/golden.json"));
  ASSERT_GE(golden["tokens"].size(), 5u);
  for (const Json& wanted : golden["tokens"]) {
    const std::string path = ::testing::TempDir() + "/trl_row.jsonl";
    std::ofstream(path) << wanted["row"].dump() << "\n";
    chat::Config config;
    config.set_path(path);
    config.set_tokenizer("datasets/samples/tokenizer");
    config.set_kind(chat::PREFERENCE);
    auto reader = chat::Chat::Create(config);
    ASSERT_TRUE(reader.ok()) << reader.status();
    Batch batch;
    const absl::Status read = (*reader)->Read({0}, &batch);
    ASSERT_TRUE(read.ok()) << read;
    for (const int64_t row : {0, 1}) {
      std::vector<int64_t> prompt, completion;
      const int64_t count = batch.at(kTokenCounts)[row].item<int64_t>();
      for (int64_t t = 0; t < count; ++t) {
        const bool trained = batch.at(kLabels)[row][t].item<int64_t>() >= 0;
        (trained ? completion : prompt)
            .push_back(batch.at(kInputIds)[row][t].item<int64_t>());
      }
      EXPECT_EQ(prompt, wanted["prompt"].get<std::vector<int64_t>>())
          << wanted["row"];
      EXPECT_EQ(
          completion,
          wanted[row == 0 ? "chosen" : "rejected"].get<std::vector<int64_t>>())
          << wanted["row"];
    }
  }
}

}  // namespace
}  // namespace capstan
