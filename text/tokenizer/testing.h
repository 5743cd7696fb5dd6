// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_TESTING_H_
#define CAPSTAN_TEXT_TOKENIZER_TESTING_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::tokenizer {

using Json = nlohmann::json;

// An empty folder for the running test.
inline std::string NewFolder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>()};
}

// Loads a tokenizer from a folder with these files; files with empty text are
// omitted.
inline absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
    const std::string& tokenizer_json, const std::string& config = "") {
  const std::string folder = NewFolder("tokenizer");
  WriteText(folder + "/tokenizer.json", tokenizer_json);
  if (!config.empty()) WriteText(folder + "/tokenizer_config.json", config);
  return LoadTokenizer(folder);
}

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_TESTING_H_
