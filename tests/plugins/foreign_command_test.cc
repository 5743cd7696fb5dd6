// SPDX-License-Identifier: Apache-2.0
//
// A command that a plugin brings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_replace.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLibrary[] = "libacme_command_greet.so";

// --plugin_path of a folder with the plugin alone.
std::string PluginPath() {
  const std::string folder = NewTestFolder("plugins");
  std::filesystem::copy_file(
      Runfile(std::string("tests/plugins/acme/") + kLibrary),
      folder + "/" + kLibrary);
  return "--plugin_path=" + folder;
}

TEST(ForeignCommandTest, RunsWithItsFlags) {
  TrainerOptions options;
  options.folder = NewTestFolder("caller");
  const TrainerResult result =
      RunTrainer({PluginPath(), "greet", "--name=Ada", "--times=2"}, options);
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_EQ(result.out, "Hello Ada\nHello Ada\n" + options.folder + "/here\n");
  ExpectOneError(RunTrainer({PluginPath(), "greet", "--name=nobody"}),
                 {"--name: must be somebody"});
  // The command line's own errors.
  EXPECT_EQ(RunTrainer({PluginPath(), "greet"}).exit_code, 2);
  EXPECT_EQ(
      RunTrainer({PluginPath(), "greet", "--name=A", "--times=0"}).exit_code,
      2);
}

TEST(ForeignCommandTest, IsListed) {
  const std::string path = PluginPath();
  EXPECT_THAT(RunTrainer({path, "--help"}).out,
              AllOf(HasSubstr("\n  greet "), HasSubstr("Greet somebody")));
  EXPECT_THAT(RunTrainer({path, "greet", "--help"}).out,
              AllOf(HasSubstr("Usage: trainer greet [OPTIONS]"),
                    HasSubstr("--name TEXT REQUIRED"),
                    HasSubstr("--times INT:POSITIVE=1")));
  EXPECT_THAT(RunTrainer({"plugins", path}).out,
              AllOf(HasSubstr("\n  trainer greet "),
                    Not(HasSubstr("acme.command_greet.Config"))));
  EXPECT_THAT(RunTrainer({"--help"}).out, Not(HasSubstr("greet")));
  EXPECT_EQ(RunTrainer({"greet", "--name=A"}).exit_code, 2);
}

// It is refused by name where it is called; help goes on without it.
TEST(ForeignCommandTest, ABrokenLibraryIsNamed) {
  const std::string path = PluginPath();
  const std::string library = path.substr(path.find('/')) + "/" + kLibrary;
  std::string bytes = ReadText(library);
  ASSERT_GT(absl::StrReplaceAll({{"\nsdk=1.", "\nsdk=2."}}, &bytes), 0);
  WriteText(library, bytes);
  ExpectOneError(RunTrainer({path, "greet", "--name=Ada"}),
                 {library, "SDK: trainer 1.", "plugin 2."});
  const TrainerResult help = RunTrainer({path, "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("greet"));
  EXPECT_THAT(help.out, HasSubstr("trainer plugins"));
}

}  // namespace
}  // namespace capstan
