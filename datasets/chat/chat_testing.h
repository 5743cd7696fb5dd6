// SPDX-License-Identifier: Apache-2.0
//
// Readers of rows that a test writes, with a tokenizer of bytes.
#ifndef CAPSTAN_DATASETS_CHAT_CHAT_TESTING_H_
#define CAPSTAN_DATASETS_CHAT_CHAT_TESTING_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "datasets/chat/chat.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan::chat {

// A file in a folder of its own test.
inline std::string File(const std::string& name, const std::string& bytes) {
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder = ::testing::TempDir() + "/" + test->name();
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

inline std::string TextRow(const std::string& text) {
  return absl::StrCat("{\"text\": \"", text, "\"}\n");
}

inline absl::StatusOr<std::unique_ptr<Chat>> Make(const Config& config,
                                                  uint64_t tokenizer_hash = 1) {
  auto tokenizer = std::make_unique<FakeTokenizer>(
      std::vector<std::string>{"<|im_start|>", "<|im_end|>"});
  tokenizer->set_special_ids({-1, 257, 257});
  return Chat::Create(config, std::move(tokenizer), tokenizer_hash);
}

inline std::unique_ptr<Chat> MustMake(const Config& config) {
  auto chat = Make(config);
  EXPECT_TRUE(chat.ok()) << chat.status();
  return chat.ok() ? *std::move(chat) : nullptr;
}

inline Config Of(const std::string& path, int64_t max_length = 100) {
  Config config;
  config.set_path(path);
  config.set_max_length(max_length);
  return config;
}

// 1,000 rows: "row 0", ..
inline std::string ManyRows() {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += TextRow(absl::StrCat("row ", i));
  return text;
}

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_CHAT_TESTING_H_
