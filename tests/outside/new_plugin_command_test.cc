// SPDX-License-Identifier: Apache-2.0
//
// new_plugin_test builds what it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Of a folder that isn't there yet.
std::string NewFolder() { return NewTestFolder("new_plugin") + "/plugins"; }

std::string Text(const std::string& path) {
  return fs::exists(path) ? ReadText(path) : "";
}

TrainerResult Write(const std::string& category, const std::string& name,
                    const std::string& folder) {
  return RunTrainer({"new-plugin", "--category=" + category, "--name=" + name,
                     "--capstan=/the/workspace", folder});
}

TEST(NewPluginCommandTest, NamesEverythingAfterThePlugin) {
  const std::string folder = NewFolder();
  const TrainerResult outcome = Write("optimizer", "acme.big_cat", folder);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("bazel build //acme/big_cat:all"),
                    HasSubstr("bazel test //acme/big_cat:all"),
                    HasSubstr("--config=acme/big_cat/big_cat.pbtxt")));
  const std::string own = folder + "/acme/big_cat/";
  EXPECT_THAT(Text(own + "big_cat.cc"),
              AllOf(HasSubstr("class BigCat final"),
                    HasSubstr("#include \"acme/big_cat/big_cat.pb.h\""),
                    Not(HasSubstr("SPDX"))));
  EXPECT_THAT(Text(own + "big_cat.proto"), HasSubstr("package acme.big_cat;"));
  EXPECT_THAT(Text(own + "BUILD"), HasSubstr("name = \"acme_big_cat\""));
  EXPECT_THAT(Text(own + "conformance_test.cc"),
              HasSubstr("acme/big_cat/libacme_big_cat.so"));
  EXPECT_THAT(Text(folder + "/WORKSPACE"),
              HasSubstr("path = \"/the/workspace\""));
  // Nothing of the templates' own names is left, in text or path.
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    ++files;
    const std::string path = entry.path().string();
    for (const char* word : {"myplugin", "myvendor", "MyPlugin", "CAPSTAN_SU",
                             "CAPSTAN_MORE", "CAPSTAN_FOLDER"}) {
      EXPECT_THAT(Text(path) + path, Not(HasSubstr(word))) << path;
    }
  }
  EXPECT_EQ(files, 9);
}

TEST(NewPluginCommandTest, KnowsEveryCategory) {
  const std::string folder = NewFolder();
  for (const char* category :
       {"collector", "dataset_reader", "model", "objective", "optimizer",
        "precision", "strategy"}) {
    const std::string name = std::string(category) + "1";
    EXPECT_EQ(Write(category, "acme." + name, folder).exit_code, 0) << category;
    for (const char* end : {".cc", ".proto", ".pbtxt"}) {
      EXPECT_GT(Text(folder + "/acme/" + name + "/" + name + end).size(), 10)
          << category << end;
    }
  }
  EXPECT_GT(fs::file_size(folder + "/acme/dataset_reader1/testdata/lines.txt"),
            100);
}

TEST(NewPluginCommandTest, OverwritesNothing) {
  const std::string folder = NewFolder();
  ASSERT_EQ(Write("optimizer", "acme.lion", folder).exit_code, 0);
  WriteText(folder + "/Makefile", "mine");
  const TrainerResult again = Write("precision", "acme.lion", folder);
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("acme/lion is there already"));
  EXPECT_THAT(Text(folder + "/acme/lion/lion.cc"), HasSubstr("Optimizer"));
  // Another one beside it keeps what they share.
  EXPECT_EQ(Write("precision", "acme.tiger", folder).exit_code, 0);
  EXPECT_EQ(Text(folder + "/Makefile"), "mine");
}

TEST(NewPluginCommandTest, RefusesWhatItCannotName) {
  const std::string folder = NewFolder();
  for (const char* name :
       {"lion", "acme.", ".lion", "acme.Lion", "acme.lion.cub", "acme.9",
        "a_b.lion", "acme.li-on", "acme/x.lion", "acme.new", "std.lion",
        "capstan.lion", "acme.config", "lion.lion"}) {
    const TrainerResult outcome = Write("optimizer", name, folder);
    ExpectOneError(outcome, {std::string("--name=") + name + ": "});
  }
  const TrainerResult unknown = Write("optimiser", "acme.lion", folder);
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("--category=optimiser"),
                                 HasSubstr("dataset_reader"),
                                 HasSubstr("did you mean optimizer?")));
  EXPECT_FALSE(fs::exists(folder));
  WriteText(folder, "a file");
  EXPECT_THAT(Write("optimizer", "acme.lion", folder).err,
              HasSubstr("is not a folder"));
  ExpectOneError(Write("optimizer", "acme.lion", ""), {"FOLDER is empty"});
  EXPECT_THAT(Write("optimizer", "acme.lion", "/proc/none").err,
              HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace capstan
