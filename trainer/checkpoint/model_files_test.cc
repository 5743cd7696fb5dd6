// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "base/files.h"
#include "trainer/checkpoint/checkpoint_testing.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void Write(const std::string& path, const std::string& text = "x") {
  fs::create_directories(fs::path(path).parent_path());
  ASSERT_TRUE(WriteWholeFile(path, text).ok()) << path;
}

ModelFiles Copy(const std::string& from, const std::string& to,
                bool own_tokenizer = false) {
  const absl::StatusOr<ModelFiles> files =
      CopyModelFiles(from, to, own_tokenizer);
  EXPECT_TRUE(files.ok()) << files.status();
  return files.ok() ? *files : ModelFiles();
}

TEST(ModelFilesTest, AllButWeightsAndLeftovers) {
  const std::string from = NewFolder() + "/base", to = NewFolder();
  for (const char* name :
       {"config.json", "modeling_x.py", "configuration_x.py", "LICENSE",
        "tokenizer.json", "vocab.json", "model.safetensors",
        "pytorch_model.bin", "model.safetensors.index.json", "optimizer.pt",
        "trainer_state.json", "capstan.json", "README.md", ".gitattributes",
        "model.onnx_data", "events.out.tfevents.1.host", "onnx/model.onnx",
        "runs/log", "adapter_config.json"}) {
    Write(from + "/" + name);
  }
  Write(to + "/config.json", "ours");
  const ModelFiles files = Copy(from, to);
  EXPECT_THAT(files.copied,
              ElementsAre("LICENSE", "configuration_x.py", "modeling_x.py",
                          "tokenizer.json", "vocab.json"));
  EXPECT_THAT(files.left, IsEmpty());
  EXPECT_EQ(*ReadWholeFile(to + "/config.json"), "ours");
  EXPECT_EQ(ModelFilesNote(from, "runs/a/final", files),
            "final/ also has LICENSE, "
            "configuration_x.py, modeling_x.py, tokenizer.json, vocab.json of "
            "base");
  const std::string other = NewFolder();
  EXPECT_THAT(Copy(from, other, /*own_tokenizer=*/true).copied,
              ElementsAre("LICENSE", "config.json", "configuration_x.py",
                          "modeling_x.py"));
}

TEST(ModelFilesTest, NothingOutsideOfTheFolder) {
  const std::string root = NewFolder();
  const std::string from = root + "/base", to = NewFolder();
  Write(root + "/secret.txt");
  Write(from + "/real.py");
  Write(from + "/sub/inner.py");
  fs::create_symlink("real.py", from + "/within.py");
  fs::create_symlink("../secret.txt", from + "/outside.txt");
  fs::create_symlink("/etc/hostname", from + "/absolute.txt");
  fs::create_symlink("loop.py", from + "/loop.py");
  // What is read anyway.
  fs::create_symlink("../secret.txt", from + "/config.json");
  ASSERT_EQ(mkfifo((from + "/pipe.txt").c_str(), 0600), 0);
  // The folder itself may be behind a link.
  fs::create_directory_symlink(from, root + "/link");
  const ModelFiles files = Copy(root + "/link", to);
  EXPECT_THAT(files.copied, ElementsAre("config.json", "real.py", "within.py"));
  EXPECT_THAT(files.left,
              ElementsAre(HasSubstr("absolute.txt ("), HasSubstr("loop.py ("),
                          HasSubstr("outside.txt (not a file of"),
                          HasSubstr("pipe.txt (")));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(to + "/within.py")));
}

TEST(ModelFilesTest, ASnapshotsLinksLeadToItsBlobs) {
  const std::string repository = NewFolder() + "/models--org--name";
  const std::string from = repository + "/snapshots/0123", to = NewFolder();
  Write(repository + "/blobs/aa", "code");
  Write(repository + "/refs/main", "0123");
  fs::create_directories(from);
  fs::create_symlink("../../blobs/aa", from + "/modeling_x.py");
  fs::create_symlink("../../refs/main", from + "/ref.txt");
  const ModelFiles files = Copy(from, to);
  EXPECT_THAT(files.copied, ElementsAre("modeling_x.py"));
  EXPECT_THAT(files.left, ElementsAre(HasSubstr("ref.txt")));
  EXPECT_EQ(*ReadWholeFile(to + "/modeling_x.py"), "code");
  EXPECT_THAT(ModelFilesNote(from, to + "/final/", files),
              HasSubstr("final/ also has modeling_x.py of org/name; without "));
}

TEST(ModelFilesTest, WhatAutoMapNames) {
  const std::string from = NewFolder() + "/base", to = NewFolder();
  Write(from + "/modeling.py");
  Write(from + "/code/configuration.py");
  Write(from + "/code/other.py");
  Write(to + "/config.json",
        R"({"limit": 1e400, "auto_map": {"AutoConfig": "code/configuration.C",
            "AutoModel": "modeling.M", "AutoModelForCausalLM": "../up.M",
            "AutoTokenizer": ["gone.T", null],
            "AutoProcessor": "org/name--far.P", "Other": "/etc/passwd.P"}})");
  const ModelFiles files = Copy(from, to);
  EXPECT_THAT(files.copied,
              ElementsAre("modeling.py", "code/configuration.py"));
  EXPECT_THAT(files.left,
              ElementsAre("../up.py (auto_map points out of the folder)",
                          "/etc/passwd.py (auto_map points out of the folder)",
                          "gone.py (auto_map names it, but it isn't there)"));
  EXPECT_FALSE(PathExists(to + "/code/other.py"));
  EXPECT_EQ(AutoClass(to), "AutoModelForCausalLM");
  EXPECT_EQ(AutoClass(from), "");
}

TEST(ModelFilesTest, LargeFilesStayBehind) {
  const std::string from = NewFolder() + "/base", to = NewFolder();
  for (const char* name : {"a.dat", "b.dat", "c.dat"}) {
    Write(from + "/" + name);
    fs::resize_file(from + "/" + name, kMostModelFileBytes);
  }
  Write(from + "/huge.json");
  fs::resize_file(from + "/huge.json", kMostModelFileBytes + 1);
  const ModelFiles files = Copy(from, to);
  EXPECT_THAT(files.copied, ElementsAre("a.dat", "b.dat"));
  EXPECT_THAT(files.left, ElementsAre("c.dat (together more than 128 MiB)",
                                      "huge.json (larger than 64 MiB)"));
  fs::remove_all(from);
  fs::remove_all(to);
}

TEST(ModelFilesTest, NoFolderIsNoError) {
  EXPECT_THAT(Copy("org/name", NewFolder()).copied, IsEmpty());
  EXPECT_EQ(ModelFilesNote("org/name", "final", ModelFiles()), "");
}

TEST(ModelNameTest, OfAFolder) {
  EXPECT_EQ(ModelName("/a/SmolLM2-135M/"), "SmolLM2-135M");
  EXPECT_EQ(ModelName("/h/hub/models--a--b--c/snapshots/12ab"), "a/b--c");
  EXPECT_EQ(ModelName("/h/hub/models--gpt2/snapshots/12ab/"), "gpt2");
  EXPECT_EQ(ModelName("/runs/sft/20261122-011551/final"), "sft");
  EXPECT_EQ(ModelName("/runs/sft/latest/final"), "sft");
  EXPECT_EQ(ModelName("/mine/final/"), "mine");
  EXPECT_EQ(HubName("/a/SmolLM2-135M"), "");
  EXPECT_EQ(BaseModelMetadata("/h/models--a--b/snapshots/1"),
            "base_model: a/b\n");
  EXPECT_EQ(BaseModelMetadata("/a/b"), "# Base model: b\n");
}

}  // namespace
}  // namespace capstan
