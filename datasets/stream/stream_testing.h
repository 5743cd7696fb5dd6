// SPDX-License-Identifier: Apache-2.0
//
// Shards that a test writes, and their samples, with a tokenizer of bytes.
#ifndef CAPSTAN_DATASETS_STREAM_STREAM_TESTING_H_
#define CAPSTAN_DATASETS_STREAM_STREAM_TESTING_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "datasets/stream/stream.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan::stream {

inline constexpr int64_t kEos = 256;

// A folder of its own for each call.
inline std::string NewFolder() {
  static int count = 0;
  const std::string folder = absl::StrCat(
      ::testing::TempDir(), "/",
      ::testing::UnitTest::GetInstance()->current_test_info()->name(), "-",
      ++count);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string JsonRow(const std::string& text) {
  return absl::StrCat("{\"id\": 7, \"text\": \"", text, "\"}\n");
}

// Different in each row of each shard, of 20 to 1,219 bytes.
inline std::string TextOf(int shard, int row) {
  std::string text = absl::StrCat("shard ", shard, " row ", row, " ");
  const size_t size = 20 + (shard * 7919 + row * 104729) % 1200;
  while (text.size() < size) absl::StrAppend(&text, text.size() * 31, " ");
  text.resize(size);
  return text;
}

inline std::shared_ptr<const Tokenizer> BytesWithEos() {
  auto tokenizer =
      std::make_shared<FakeTokenizer>(std::vector<std::string>{"<|eos|>"});
  tokenizer->set_special_ids({-1, kEos, -1});
  return tokenizer;
}

inline absl::StatusOr<std::unique_ptr<Stream>> Make(
    const Config& config, const std::string& definition = "bytes") {
  return Stream::Create(config, BytesWithEos(), definition);
}

inline std::unique_ptr<Stream> MustMake(const Config& config) {
  auto stream = Make(config);
  EXPECT_TRUE(stream.ok()) << stream.status();
  return stream.ok() ? *std::move(stream) : nullptr;
}

inline Config Of(const std::string& path, int64_t sequence_length = 64) {
  Config config;
  config.set_path(path);
  config.set_sequence_length(sequence_length);
  return config;
}

using Ids = std::vector<int64_t>;

inline absl::StatusOr<Ids> Read(const DatasetReader& reader,
                                const std::vector<int64_t>& samples,
                                const char* name = kInputIds) {
  Batch batch;
  const absl::Status status = reader.Read(samples, &batch);
  if (!status.ok()) return status;
  const at::Tensor tensor = batch.at(name).contiguous();
  const int64_t* data = tensor.const_data_ptr<int64_t>();
  return Ids(data, data + tensor.numel());
}

inline Ids MustRead(const DatasetReader& reader,
                    const std::vector<int64_t>& samples,
                    const char* name = kInputIds) {
  const auto ids = Read(reader, samples, name);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : Ids();
}

// The texts between ends, of a stream with one lane.
inline std::vector<std::string> TextsIn(const Ids& ids) {
  std::vector<std::string> texts(1);
  for (const int64_t id : ids) {
    if (id == kEos) {
      texts.emplace_back();
    } else {
      texts.back() += static_cast<char>(id);
    }
  }
  texts.pop_back();
  return texts;
}

}  // namespace capstan::stream

#endif  // CAPSTAN_DATASETS_STREAM_STREAM_TESTING_H_
