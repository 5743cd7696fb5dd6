// SPDX-License-Identifier: Apache-2.0
#include "desk/audit/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/error_code.h"
#include "base/files.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string PathOf(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

// Keys as a user makes them.
void MakeKeys(const std::string& name, const std::string& algorithm) {
  const std::string secret = PathOf(name + ".pem");
  ASSERT_EQ(
      std::system(absl::StrCat("openssl genpkey ", algorithm, " -out ", secret,
                               " 2>/dev/null && openssl pkey ", "-in ", secret,
                               " -pubout -out ", PathOf(name + ".pub"))
                      .c_str()),
      0);
}

TEST(SignatureTest, IsOfTheKeyAndOfWhatItSays) {
  const std::string path = PathOf("receipts.sig");
  const SignedReceipts receipts = {7, "ab12", "cd34"};
  MakeKeys("other", "-algorithm ed25519");
  for (const char* algorithm :
       {"-algorithm ed25519", "-algorithm RSA",
        "-algorithm EC -pkeyopt ec_paramgen_curve:P-256"}) {
    MakeKeys("mine", algorithm);
    const absl::Status made = Sign(receipts, PathOf("mine.pem"), path);
    ASSERT_TRUE(made.ok()) << made;
    const auto read = ReadSignature(path, PathOf("mine.pub"));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->step, 7);
    EXPECT_EQ(read->chain, "ab12");
    EXPECT_EQ(read->seal, "cd34");
    EXPECT_THAT(
        std::string(
            ReadSignature(path, PathOf("other.pub")).status().message()),
        HasSubstr("isn't the signature of what it says by the key"));
    const std::string text = *ReadWholeFile(path);
    for (const auto& [before, after] :
         {std::pair<std::string, std::string>{"ab12", "ab13"},
          {"cd34", "cd35"},
          {"\"step\": 7", "\"step\": 8"},
          {"\"signature\": \"", "\"signature\": \"AAAA"}}) {
      const std::string changed = absl::StrReplaceAll(text, {{before, after}});
      ASSERT_NE(changed, text) << before;
      std::ofstream(path) << changed;
      EXPECT_FALSE(ReadSignature(path, PathOf("mine.pub")).ok()) << before;
    }
  }
}

TEST(SignatureTest, AnothersSignatureIsNotReplaced) {
  const std::string path = PathOf("kept.sig");
  MakeKeys("first", "-algorithm ed25519");
  MakeKeys("second", "-algorithm EC -pkeyopt ec_paramgen_curve:P-256");
  EXPECT_TRUE(CheckMaySign(PathOf("first.pem"), path).ok());
  ASSERT_TRUE(Sign({7, "ab12", "cd34"}, PathOf("first.pem"), path).ok());
  EXPECT_TRUE(CheckMaySign(PathOf("first.pem"), path).ok());
  const absl::Status other = CheckMaySign(PathOf("second.pem"), path);
  EXPECT_THAT(std::string(other.message()),
              AllOf(HasSubstr("kept.sig is there already, and isn't a "
                              "signature by "),
                    HasSubstr("second.pem: move it away before you sign")));
  EXPECT_EQ(CodeOf(other), "receipts/signature");
  std::ofstream(path) << "mine";
  EXPECT_FALSE(CheckMaySign(PathOf("first.pem"), path).ok());
}

TEST(SignatureTest, WhatIsNoKeyOrNoSignatureIsTold) {
  const std::string path = PathOf("broken.sig");
  MakeKeys("key", "-algorithm ed25519");
  EXPECT_THAT(
      std::string(Sign({}, PathOf("key.pub"), path).message()),
      HasSubstr("key.pub has no private key in PEM without a passphrase"));
  std::ofstream(path) << "{\"chain\": 3}";
  EXPECT_THAT(
      std::string(ReadSignature(path, PathOf("key.pub")).status().message()),
      HasSubstr("broken.sig is no signature: it has no \"chain\""));
  EXPECT_THAT(
      std::string(ReadSignature(path, PathOf("key.pem")).status().message()),
      HasSubstr("key.pem has no public key in PEM"));
  ASSERT_EQ(
      std::system(absl::StrCat("openssl genpkey -algorithm ed25519 -aes256 ",
                               "-pass pass:x -out ", PathOf("locked.pem"))
                      .c_str()),
      0);
  EXPECT_THAT(std::string(Sign({}, PathOf("locked.pem"), path).message()),
              HasSubstr("without a passphrase"));
}

}  // namespace
}  // namespace capstan
