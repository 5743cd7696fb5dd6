// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "host/config/load_config.h"

namespace capstan {
namespace {

TEST(HubDownloadHintTest, NamesTheCommandAndTheSetting) {
  EXPECT_EQ(HubDownloadHint("HuggingFaceTB/SmolLM2-135M", "--model"),
            "; if it is a model on the Hub, download it first: hf download "
            "HuggingFaceTB/SmolLM2-135M --local-dir SmolLM2-135M, and say "
            "--model=SmolLM2-135M");
}

TEST(HubDownloadHintTest, OnlyForWhatMayBeAName) {
  for (const char* path : {"model", "/model", "/a/b", "../b", "./b", "~/b",
                           "a/b/c", "a/", "/", ""}) {
    EXPECT_EQ(HubDownloadHint(path, "--model"), "") << path;
  }
}

}  // namespace
}  // namespace capstan
