// SPDX-License-Identifier: Apache-2.0
#include "host/storage/error_kind.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace capstan {
namespace {

// In the words of Arrow's clients.
TEST(ErrorKindTest, WhatIsMissingIsNotTriedAgain) {
  EXPECT_EQ(KindOfError("No such file or directory 'bucket/folder'", 0),
            StoreResult::kMissing);
  EXPECT_EQ(KindOfError("google::cloud::Status(NOT_FOUND: Permanent error in "
                        "GetObjectMetadata: Not Found)",
                        0),
            StoreResult::kMissing);
  // Of a folder that has no object of its own, in GCS.
  EXPECT_EQ(KindOfError("No such directory: bucket/folder", 0),
            StoreResult::kMissing);
  EXPECT_EQ(KindOfError("other words of a later version", ENOENT),
            StoreResult::kMissing);
  EXPECT_EQ(KindOfError("Not a regular file: 'container/folder'", 0),
            StoreResult::kMissing);
  EXPECT_EQ(KindOfError("AWS Error NO_SUCH_KEY during GetObject", 0),
            StoreResult::kMissing);
}

TEST(ErrorKindTest, WhatIsRefusedIsNotTriedAgain) {
  EXPECT_EQ(KindOfError("other words", EACCES), StoreResult::kRefused);
  EXPECT_EQ(KindOfError("Status(NOT_FOUND: The specified bucket does not "
                        "exist.)",
                        ENOENT),
            StoreResult::kRefused);
  EXPECT_EQ(KindOfError("Bucket 'b' not found", 0), StoreResult::kRefused);
  EXPECT_EQ(KindOfError("HTTP status 400, InvalidRequest", 0),
            StoreResult::kRefused);
}

TEST(ErrorKindTest, WhatMayPassIsTriedAgain) {
  EXPECT_EQ(KindOfError("HTTP status 400, RequestTimeout", 0),
            StoreResult::kPassing);
  EXPECT_EQ(KindOfError("curlCode: 7, Couldn't connect to server", 0),
            StoreResult::kPassing);
  EXPECT_EQ(KindOfError("Status(UNAVAILABLE: ..)", EAGAIN),
            StoreResult::kPassing);
}

}  // namespace
}  // namespace capstan
