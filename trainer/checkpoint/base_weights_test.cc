// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/base_weights.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// More than a piece of a checksum.
constexpr int64_t kLarge = 5 << 20;

struct Named {
  std::string name;
  double from = 0;  // its first value; each is one more than that before
};

std::string NewFolder() {
  static int count = 0;
  const std::string folder = absl::StrCat(::testing::TempDir(), "/", ++count);
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

void WriteFile(const std::string& path, const std::vector<Named>& tensors,
               c10::ScalarType dtype) {
  auto writer = SafetensorsWriter::Create(path);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const Named& one : tensors) {
    (*writer)->Declare(one.name, dtype, {kLarge});
  }
  for (const Named& one : tensors) {
    const at::Tensor values =
        at::arange(one.from, one.from + kLarge, at::kDouble)
            .remainder(4096)
            .to(dtype);
    ASSERT_TRUE(
        (*writer)->Append(values.const_data_ptr(), values.nbytes()).ok());
  }
  ASSERT_TRUE((*writer)->Close().ok());
}

std::string DigestOf(const std::vector<Named>& tensors,
                     c10::ScalarType dtype = at::kFloat) {
  const std::string folder = NewFolder();
  WriteFile(folder + "/model.safetensors", tensors, dtype);
  const auto digest = DigestOfWeights(folder);
  EXPECT_TRUE(digest.ok()) << digest.status();
  return digest.value_or("");
}

TEST(BaseWeightsTest, EachByteNameAndDtypeCountsFilesAndOrderDont) {
  const std::string whole = DigestOf({{"a", 1}, {"b", 2}});
  EXPECT_THAT(whole, HasSubstr("2 tensors in F32, 41943040 bytes, crc32c "));
  EXPECT_EQ(DigestOf({{"b", 2}, {"a", 1}}), whole);
  EXPECT_NE(DigestOf({{"a", 2}, {"b", 1}}), whole);
  EXPECT_NE(DigestOf({{"a", 1}, {"c", 2}}), whole);
  EXPECT_THAT(DigestOf({{"a", 1}, {"b", 2}}, at::kBFloat16),
              HasSubstr("2 tensors in BF16, 20971520 bytes"));
  // In shards.
  const std::string folder = NewFolder();
  WriteFile(folder + "/one.safetensors", {{"b", 2}}, at::kFloat);
  WriteFile(folder + "/two.safetensors", {{"a", 1}}, at::kFloat);
  ASSERT_TRUE(WriteWholeFile(folder + "/model.safetensors.index.json",
                             R"({"weight_map": {"a": "two.safetensors",
                                 "b": "one.safetensors"}})")
                  .ok());
  EXPECT_EQ(DigestOfWeights(folder).value(), whole);
  // A value near the end of one.
  std::string bytes = ReadWholeFile(folder + "/two.safetensors").value();
  bytes[bytes.size() - 5] ^= 1;
  ASSERT_TRUE(WriteWholeFile(folder + "/two.safetensors", bytes).ok());
  EXPECT_NE(DigestOfWeights(folder).value(), whole);
}

TEST(BaseWeightsTest, AnAdapterKnowsItsBase) {
  const std::string adapter = NewFolder();
  // PEFT's own.
  EXPECT_EQ(BaseWeightsOf(adapter), "");
  EXPECT_THAT(NoteWithoutBase(adapter), HasSubstr(adapter + " doesn't say"));
  EXPECT_TRUE(CheckBaseWeights(adapter, "/nowhere").ok());
  const std::string folder = NewFolder();
  WriteFile(folder + "/model.safetensors", {{"a", 1}}, at::kFloat);
  const auto says = [&](const std::string& text) {
    ASSERT_TRUE(WriteWholeFile(adapter + "/capstan.json",
                               "{\"base_weights\": \"" + text + "\"}")
                    .ok());
  };
  says(DigestOfWeights(folder).value());
  EXPECT_EQ(NoteWithoutBase(adapter), "");
  EXPECT_TRUE(CheckBaseWeights(adapter, folder).ok());
  says(DigestOf({{"a", 2}}));
  EXPECT_THAT(std::string(CheckBaseWeights(adapter, folder).message()),
              AllOf(HasSubstr(adapter + " was trained on a base of 1 tensors"),
                    HasSubstr(folder), HasSubstr("another state of it"),
                    HasSubstr("--other_base")));
  says(DigestOf({{"a", 1}}, at::kHalf));
  EXPECT_THAT(std::string(CheckBaseWeights(adapter, folder).message()),
              AllOf(HasSubstr("in F16"), HasSubstr("in F32"),
                    HasSubstr("in another dtype is another base")));
  EXPECT_THAT(std::string(CheckBaseWeights(adapter, NewFolder()).message()),
              HasSubstr("--other_base"));
}

}  // namespace
}  // namespace capstan
