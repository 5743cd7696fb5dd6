// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/gpu_query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;

// A machine whose nvidia-smi is `script`.
void UseProgram(const std::string& script) {
  std::string folder = ::testing::TempDir() + "/bin_XXXXXX";
  ASSERT_NE(mkdtemp(&folder[0]), nullptr);
  const std::string path = folder + "/nvidia-smi";
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  const std::string search = absl::StrCat(folder, ":", getenv("PATH"));
  setenv("PATH", search.c_str(), 1);
}

TEST(GpuQueryTest, OneValueAGpu) {
  UseProgram(
      "test \"$1\" = --query-gpu=compute_cap && echo 8.0 && echo ' 7.5'");
  EXPECT_THAT(QueryGpus("compute_cap"), ElementsAre("8.0", "7.5"));
}

TEST(GpuQueryTest, OnlyGpusThatCudaShows) {
  UseProgram("echo $3");
  setenv("CUDA_VISIBLE_DEVICES", "1,3", 1);
  EXPECT_THAT(QueryGpus("compute_cap"), ElementsAre("--id=1,3"));
  // Nothing that a shell would run.
  setenv("CUDA_VISIBLE_DEVICES", "1;2", 1);
  EXPECT_THAT(QueryGpus("compute_cap"), ElementsAre(""));
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(GpuQueryTest, NoneWhereItFails) {
  UseProgram("echo 8.0; exit 9");
  EXPECT_TRUE(QueryGpus("compute_cap").empty());
}

}  // namespace
}  // namespace capstan
