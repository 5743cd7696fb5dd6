// SPDX-License-Identifier: Apache-2.0
#include "plugins/dpo/objective/reference_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "plugins/dpo/objective/fake_model.h"

namespace capstan::dpo {
namespace {

using ::testing::HasSubstr;

std::string NewPath() {
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder = ::testing::TempDir() + "/" + test->name();
  std::filesystem::remove_all(folder);
  return folder + "/pairs.reference";
}

TEST(ReferenceFileTest, KeepsWhatWasWritten) {
  const std::string path = NewPath();
  EXPECT_TRUE(absl::IsNotFound(ReadReference(path).status()));
  auto pairs =
      WriteReference(path, {"m", {{7, {-1.5f, -2.0f}}, {-3, {-4, -5}}}});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_EQ(*pairs, 2);
  auto file = ReadReference(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->model, "m");
  EXPECT_EQ(file->pairs.size(), 2);
  EXPECT_EQ(file->pairs.at(-3).rejected, -5.0f);
  EXPECT_EQ(file->pairs.at(7).chosen, -1.5f);
}

TEST(ReferenceFileTest, OneModelsPairsAddUp) {
  const std::string path = NewPath();
  ASSERT_TRUE(WriteReference(path, {"m", {{1, {-1, -1}}, {2, {-2, -2}}}}).ok());
  EXPECT_EQ(*WriteReference(path, {"m", {{2, {-9, -9}}, {3, {-3, -3}}}}), 3);
  EXPECT_EQ(ReadReference(path)->pairs.at(2).chosen, -9.0f);  // the newer
  EXPECT_EQ(*WriteReference(path, {"another", {{4, {-4, -4}}}}), 1);
}

TEST(ReferenceFileTest, AnotherFileIsAnError) {
  const std::string path = NewPath();
  ASSERT_TRUE(WriteReference(path, {"m", {{1, {-1, -1}}}}).ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(ReadReference(path).status().message(),
              HasSubstr("run `trainer dpo-reference` again"));
  std::ofstream(path, std::ios::binary) << "not safetensors";
  EXPECT_THAT(ReadReference(path).status().message(),
              HasSubstr(path + " is no file of reference"));
}

TEST(ReferenceFileTest, FingerprintsTellModelsApart) {
  FakeModel model, other, adapted(/*adapter=*/true);
  const std::string mine = *ModelFingerprint(model, 1);
  EXPECT_EQ(*ModelFingerprint(other, 1), mine);
  other.initial_shift = 1e-3;
  EXPECT_NE(*ModelFingerprint(other, 1), mine);
  // Its adapter isn't 0 at the start.
  EXPECT_NE(*ModelFingerprint(adapted, 1), mine);
}

}  // namespace
}  // namespace capstan::dpo
