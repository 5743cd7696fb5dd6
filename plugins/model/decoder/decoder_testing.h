// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_TESTING_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_TESTING_H_

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "plugins/model/decoder/family.h"

namespace capstan::decoder {

// What transformers wrote for a small model of a family.
inline Json GoldenConfig(const std::string& family) {
  return Json::parse(
      std::ifstream("tests/golden/testdata/" + family + "/config.json"));
}

// An empty folder of the running test.
inline std::string TestFolder(const std::string& name) {
  const std::string folder =
      testing::TempDir() + "/" +
      testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
      name;
  mkdir(folder.c_str(), 0700);
  return folder;
}

// Reads `json` as the config.json of a folder.
inline absl::StatusOr<DecoderConfig> ReadJson(const Json& json) {
  const std::string folder = TestFolder("config");
  std::ofstream(folder + "/config.json") << json.dump();
  return ReadFolder(folder);
}

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_DECODER_TESTING_H_
