// SPDX-License-Identifier: Apache-2.0
//
// new_plugin_test builds what it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

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

// What tells Capstan's workspace from another folder.
std::string Capstan() {
  static const std::string* const folder = [] {
    auto* const made = new std::string(NewTestFolder("capstan"));
    fs::create_directories(*made + "/plugins/sdk");
    WriteText(*made + "/plugins/sdk/plugin.h", "");
    return made;
  }();
  return *folder;
}

TrainerResult Write(const std::string& category, const std::string& name,
                    const std::string& folder) {
  return RunTrainer({"new-plugin", "--category=" + category, "--name=" + name,
                     "--capstan=" + Capstan(), folder});
}

TEST(NewPluginCommandTest, NamesEverythingAfterThePlugin) {
  const std::string folder = NewFolder();
  const TrainerResult outcome = Write("optimizer", "acme.big_cat", folder);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("bazel build //acme/big_cat:all"),
                    HasSubstr("bazel test //acme/big_cat:all"),
                    HasSubstr("--config=acme/big_cat/big_cat.pbtxt"),
                    HasSubstr("apt-get install g++ make protobuf-compiler "),
                    HasSubstr(" libabsl-dev ")));
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
              HasSubstr("path = \"" + Capstan() + "\""));
  // Nothing of the templates' own names is left, in text or path.
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    ++files;
    const std::string path = entry.path().string();
    for (const char* word : {"myplugin", "myvendor", "MyPlugin", "CAPSTAN_SU",
                             "CAPSTAN_MORE", "CAPSTAN_FOLDER", "mycommand"}) {
      EXPECT_THAT(Text(path) + path, Not(HasSubstr(word))) << path;
    }
  }
  EXPECT_EQ(files, 9);
}

TEST(NewPluginCommandTest, KnowsEveryCategory) {
  const std::string folder = NewFolder();
  for (const char* category :
       {"collector", "dataset_reader", "model", "objective", "optimizer",
        "part", "precision", "strategy"}) {
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

// Its package says that it is one, and it has no config.
TEST(NewPluginCommandTest, ACommandIsNamedAsItIsCalled) {
  const std::string folder = NewFolder();
  for (const char* name : {"acme.big_cat", "acme.command_small_cat"}) {
    const TrainerResult outcome = Write("command", name, folder);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("cat --text=acme/command_"));
  }
  const std::string own = folder + "/acme/command_big_cat/";
  EXPECT_THAT(Text(own + "command_big_cat.cc"),
              AllOf(HasSubstr("class BigCat final"),
                    HasSubstr("`trainer big-cat --text=FILE`"),
                    HasSubstr("CAPSTAN_COMMAND(\"acme.command_big_cat\"")));
  EXPECT_THAT(Text(own + "BUILD"),
              AllOf(HasSubstr("name = \"acme_command_big_cat\""),
                    HasSubstr("conformance = [\"command\"]")));
  for (const char* name : {"acme.plan", "acme.command_"}) {
    ExpectOneError(Write("command", name, folder),
                   {std::string("--name=") + name, "can't be a plugin's"});
  }
  EXPECT_FALSE(fs::exists(own + "command_big_cat.proto"));
  EXPECT_TRUE(fs::exists(own + "testdata/lines.txt"));
  EXPECT_THAT(Text(folder + "/acme/command_small_cat/command_small_cat.cc"),
              HasSubstr("class SmallCat final"));
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

TEST(NewPluginCommandTest, WritesNothingThroughALink) {
  const std::string folder = NewFolder();
  fs::create_directories(folder);
  const std::string elsewhere = NewTestFolder("elsewhere") + "/WORKSPACE";
  fs::create_symlink(elsewhere, folder + "/WORKSPACE");
  const TrainerResult outcome = Write("optimizer", "acme.cat", folder);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/WORKSPACE is a link to a file that"));
  EXPECT_FALSE(fs::exists(elsewhere));
  EXPECT_FALSE(fs::exists(folder + "/acme"));
}

TEST(NewPluginCommandTest, FindsCapstanOrSaysThatItIsNotThere) {
  const std::string root = NewTestFolder("roots");
  WriteText(root + "/WORKSPACE", "");  // another's
  const std::vector<std::string> words = {"new-plugin", "--category=optimizer",
                                          "--name=acme.lion"};
  const auto write = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    TrainerOptions options;
    options.folder = root;
    return RunTrainer(more, options);
  };
  ExpectOneError(write({"--capstan=/proc", "plugins"}),
                 {"--capstan=/proc", "isn't Capstan's workspace"});
  EXPECT_FALSE(fs::exists(root + "/plugins"));
  EXPECT_THAT(write({"elsewhere/plugins"}).out,
              AllOf(HasSubstr("=CAPSTAN/configs/"),
                    HasSubstr("Capstan's workspace, which isn't found")));
  fs::create_directories(root + "/capstan/plugins/sdk");
  WriteText(root + "/capstan/plugins/sdk/plugin.h", "");
  const TrainerResult found = write({"plugins"});
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_THAT(found.out, HasSubstr("=" + root + "/capstan/configs/"));
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
