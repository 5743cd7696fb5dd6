// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/weight_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

// Two shards of a tensor each. A byte of the first one changes, from its end,
// before they are finished; 0: none.
absl::Status Write(const std::string& name, int changed) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/", name);
  RemoveTree(folder).IgnoreError();
  EXPECT_TRUE(MakeFolder(folder).ok());
  WeightFiles files(folder, "model", /*max_shard_bytes=*/16,
                    {{"a", c10::ScalarType::Float, {4}},
                     {"b", c10::ScalarType::Float, {2, 2}}});
  const std::vector<float> values = {1.0f, 2.0f, 3.0f, 4.0f};
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(files.Add(i, values.data()).ok());
  if (changed > 0) {
    std::fstream file(folder + "/model-00001-of-00002.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-changed, std::ios::end);
    file.put('?');
  }
  return files.Finish();
}

TEST(WeightFilesTest, AreReadAgain) {
  EXPECT_TRUE(Write("whole", 0).ok());
  for (const int changed : {1, 8, 16}) {
    const absl::Status status = Write("changed", changed);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << changed;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("model-00001-of-00002.safetensors: a isn't what"));
  }
}

}  // namespace
}  // namespace capstan
