// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/load_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/any.pb.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LoadConfigTest : public ::testing::Test {
 protected:
  LoadConfigTest()
      : host_({absl::StrCat(std::getenv("TEST_SRCDIR"),
                            "/capstan/trainer/plugins")}) {
    folder_ = (std::filesystem::path(::testing::TempDir()) /
               ::testing::UnitTest::GetInstance()->current_test_info()->name())
                  .lexically_normal()
                  .string();
    std::filesystem::create_directories(folder_);
    context_.host = &host_;
    context_.caller_folder = folder_;
    context_.build_folder = "/build";
  }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
    return name;
  }

  absl::StatusOr<LoadedConfig> Load(
      const std::string& text, const std::vector<std::string>& overrides = {}) {
    return LoadConfig({Write("run.pbtxt", text)}, overrides, context_);
  }

  std::string ErrorOf(const std::string& text,
                      const std::vector<std::string>& overrides = {}) {
    return std::string(Load(text, overrides).status().message());
  }

  PluginHost host_;
  std::string folder_;
  ConfigContext context_;
};

TEST_F(LoadConfigTest, LoadsThePluginsThatItNames) {
  const auto loaded = Load(
      "strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 } }\n"
      "train { max_steps: 7 }\n"
      "launch { processes: 3 }\n");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.train().max_steps(), 7);
  EXPECT_EQ(static_cast<int>(loaded->config.launch().processes()), 3);
  EXPECT_EQ(loaded->config.name(), "run");
  EXPECT_EQ(loaded->locations.at("strategy.bucket_cap_mib"), "run.pbtxt:1:42");
  const std::string printed = PrintConfig(loaded->config);
  EXPECT_THAT(printed, HasSubstr("[plugin/capstan.ddp.Config]"));
  EXPECT_THAT(printed, HasSubstr("bucket_cap_mib: 5"));
  EXPECT_TRUE(ParseConfig(printed, "printed", context_).ok());
}

TEST_F(LoadConfigTest, AutoIsAProcessCount) {
  const auto loaded = Load("launch { processes: AUTO }");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.launch().processes(), Launch::AUTO);
}

TEST_F(LoadConfigTest, UnknownFieldNamesPlaceAndNearestField) {
  EXPECT_THAT(ErrorOf("train {\n  max_step: 7\n}"),
              AllOf(HasSubstr("run.pbtxt:2:"), HasSubstr("\"max_step\""),
                    HasSubstr("did you mean \"max_steps\"?")));
}

TEST_F(LoadConfigTest, UnknownPluginFieldNamesPlaceAndNearestField) {
  EXPECT_THAT(
      ErrorOf("strategy { [plugin/capstan.ddp.Config] {\n bucket_cap: 5 } }"),
      AllOf(HasSubstr("run.pbtxt:2:"), HasSubstr("\"bucket_cap\""),
            HasSubstr("did you mean \"bucket_cap_mib\"?")));
}

TEST_F(LoadConfigTest, WrongTypeNamesThePlace) {
  EXPECT_THAT(ErrorOf("train { max_steps: \"ten\" }"),
              AllOf(HasSubstr("run.pbtxt:1:20"), HasSubstr("integer")));
}

TEST_F(LoadConfigTest, MisspeltPluginNamesWhatWasTriedAndTheNearest) {
  EXPECT_THAT(ErrorOf("strategy { [plugin/capstan.dpd.Config] {} }"),
              AllOf(HasSubstr("run.pbtxt:1:"), HasSubstr("\"capstan.dpd\""),
                    HasSubstr("libcapstan_dpd.so"),
                    HasSubstr("did you mean \"capstan.ddp\"?")));
}

TEST_F(LoadConfigTest, WrongPrefixSaysHowToWriteIt) {
  EXPECT_THAT(ErrorOf("strategy { [capstan.com/capstan.ddp.Config] {} }"),
              HasSubstr("[plugin/capstan.ddp.Config]"));
}

TEST_F(LoadConfigTest, LaterFilesMergeOverEarlierOnes) {
  Write("a.pbtxt",
        "strategy { [plugin/capstan.ddp.Config] {"
        " bucket_cap_mib: 5 first_bucket_mib: 2 } }\n"
        "train { max_steps: 7 max_grad_norm: 1 }");
  Write("b.pbtxt",
        "strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 6 } }\n"
        "train { max_grad_norm: 0 }");
  const auto loaded = LoadConfig({"a.pbtxt", "b.pbtxt"}, {}, context_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.train().max_steps(), 7);
  EXPECT_EQ(loaded->config.train().max_grad_norm(), 0.0);
  const std::string printed = PrintConfig(loaded->config);
  EXPECT_THAT(printed, HasSubstr("bucket_cap_mib: 6"));
  EXPECT_THAT(printed, HasSubstr("first_bucket_mib: 2"));
  EXPECT_EQ(loaded->locations.at("strategy.first_bucket_mib"), "a.pbtxt:1:60");
}

TEST_F(LoadConfigTest, AnotherPluginReplacesTheSlot) {
  const auto loaded =
      Load("strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 } }",
           {"strategy=capstan.single"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.strategy().type_url(),
            "plugin/capstan.single.Config");
  EXPECT_EQ(loaded->locations.count("strategy.bucket_cap_mib"), 0);
}

TEST_F(LoadConfigTest, SetReachesIntoPlugins) {
  const auto loaded =
      Load("strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 } }",
           {"strategy.bucket_cap_mib=7.5", "name=my \"run\"",
            "schedule.kind=COSINE"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(PrintConfig(loaded->config), HasSubstr("bucket_cap_mib: 7.5"));
  EXPECT_EQ(loaded->config.name(), "my \"run\"");
  EXPECT_EQ(loaded->config.schedule().kind(), Schedule::COSINE);
}

TEST_F(LoadConfigTest, SetErrorsNameTheFlag) {
  EXPECT_THAT(ErrorOf("", {"trian.max_steps=1"}),
              AllOf(HasSubstr("--set trian.max_steps=1"),
                    HasSubstr("did you mean \"train\"?")));
  EXPECT_THAT(ErrorOf("", {"train.max_steps=x"}),
              HasSubstr("--set train.max_steps=x"));
  EXPECT_THAT(ErrorOf("", {"model.hidden_size=1"}),
              HasSubstr("no plugin is set for \"model\""));
  EXPECT_THAT(ErrorOf("", {"nothing"}), HasSubstr("write it path=value"));
}

TEST_F(LoadConfigTest, PathsAreRelativeToTheirFile) {
  std::filesystem::create_directories(folder_ + "/sub");
  Write("sub/run.pbtxt",
        "output_dir: \"out\"\n"
        "train_data { [plugin/capstan.text.Config] { path: \"../a.txt\" } }");
  auto loaded = LoadConfig({"sub/run.pbtxt"}, {}, context_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.output_dir(), folder_ + "/sub/out");
  EXPECT_THAT(PrintConfig(loaded->config),
              HasSubstr(absl::StrCat("\"", folder_, "/a.txt\"")));
  loaded =
      LoadConfig({"sub/run.pbtxt"},
                 {"output_dir=x", "train_data.path=//a/b:c.txt"}, context_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.output_dir(), folder_ + "/x");
  EXPECT_THAT(PrintConfig(loaded->config), HasSubstr("\"/build/a/b/c.txt\""));
}

TEST_F(LoadConfigTest, PathsInRepeatedMessagesToo) {
  const auto loaded = Load(
      "train_data { [plugin/capstan.chat.Config] {\n"
      "  source { path: \"a.jsonl\" weight: 2 }\n"
      "  source { path: \"//a/b:c.jsonl\" }\n"
      "} }");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(
      PrintConfig(loaded->config),
      AllOf(HasSubstr(absl::StrCat("\"", folder_, "/a.jsonl\"")),
            HasSubstr("weight: 2"), HasSubstr("\"/build/a/b/c.jsonl\"")));
  EXPECT_EQ(loaded->locations.at("train_data.source[1].path"),
            "run.pbtxt:3:12");
}

TEST_F(LoadConfigTest, ConfigsAreFoundInTheWorkspaceToo) {
  std::filesystem::create_directories(folder_ + "/w/configs");
  Write("w/configs/only_there.pbtxt", "train { max_steps: 3 }");
  context_.workspace_folder = folder_ + "/w";
  const auto loaded = LoadConfig({"only_there.pbtxt"}, {}, context_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.train().max_steps(), 3);
  EXPECT_THAT(
      std::string(LoadConfig({"no.pbtxt"}, {}, context_).status().message()),
      AllOf(HasSubstr("no.pbtxt"), HasSubstr("configs/no.pbtxt")));
}

TEST_F(LoadConfigTest, LocateNamesTheFieldOrTheNearestAround) {
  const auto loaded =
      Load("strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 } }");
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(
      loaded->Locate(FieldError("bucket_cap_mib", "bad"), "strategy").message(),
      "run.pbtxt:1:42: strategy.bucket_cap_mib: bad");
  EXPECT_EQ(loaded->Locate(FieldError("first_bucket_mib", "bad"), "strategy")
                .message(),
            "run.pbtxt:1:1: strategy.first_bucket_mib: bad");
}

// default_from: a collector's output is what train_data reads.
TEST_F(LoadConfigTest, ASlotMayTakeAStringFromAnother) {
  const auto output = [&](const std::string& collect,
                          const std::string& data) -> std::string {
    const auto loaded =
        Load(absl::StrCat("collect { [plugin/capstan.darkroom.Config] { ",
                          collect, " } }\ntrain_data { ", data, " }\n"));
    if (!loaded.ok()) return std::string(loaded.status().message());
    const auto filled = WithDefaults(loaded->config.collect(), loaded->config);
    if (!filled.ok()) return std::string(filled.status().message());
    RunConfig config;
    *config.mutable_collect() = *filled;
    return PrintConfig(config);
  };
  const std::string data =
      "[plugin/capstan.ad_history.Config] { path: \"/a.hdf5\" }";
  EXPECT_THAT(output("tasks: 3", data),
              AllOf(HasSubstr("output: \"/a.hdf5\""), HasSubstr("tasks: 3")));
  EXPECT_THAT(output("output: \"/b.hdf5\"", data),
              HasSubstr("output: \"/b.hdf5\""));
  for (const char* other :
       {"", "[plugin/capstan.ad_history.Config] {}",
        "[plugin/capstan.darkroom.Config] { output: \"/c\" }"}) {
    EXPECT_THAT(output("tasks: 3", other), Not(HasSubstr("output"))) << other;
  }
}

}  // namespace
}  // namespace capstan
