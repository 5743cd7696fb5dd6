// SPDX-License-Identifier: Apache-2.0
#include "host/config/load_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/any.pb.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "host/config/mend.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
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

  LoadedConfig MustLoad(const std::string& text,
                        const std::vector<std::string>& overrides = {}) {
    return Must(Load(text, overrides));
  }
  static LoadedConfig Must(absl::StatusOr<LoadedConfig> loaded) {
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *std::move(loaded) : LoadedConfig();
  }

  std::string ErrorOf(const std::string& text,
                      const std::vector<std::string>& overrides = {}) {
    return std::string(Load(text, overrides).status().message());
  }

  PluginHost host_;
  std::string folder_;
  ConfigContext context_;
};

TEST_F(LoadConfigTest, AFolderIsNoConfig) {
  const auto error = [&] {
    return std::string(LoadConfig({"model"}, {}, context_).status().message());
  };
  std::filesystem::create_directories(folder_ + "/model");
  EXPECT_THAT(error(), HasSubstr("--config=model is a folder: a config is"));
  Write("model/config.pbtxt", "");
  EXPECT_THAT(error(), HasSubstr("its run's config is config.pbtxt"));
}

TEST_F(LoadConfigTest, EditorsMarksAreKnown) {
  EXPECT_EQ(
      MustLoad("\xef\xbb\xbftrain { max_steps: 7 }").config.train().max_steps(),
      7);
  EXPECT_THAT(ErrorOf("\xff\xfet"),
              HasSubstr("run.pbtxt is UTF-16: save it as UTF-8"));
}

// A run at an address of a store works in a folder of this machine.
TEST_F(LoadConfigTest, AddressesOfStores) {
  setenv("CAPSTAN_STORAGE_FOLDER", "/work", 1);
  const LoadedConfig stored = MustLoad("output_dir: \"s3://bucket/a/run\"");
  EXPECT_THAT(stored.config.output_dir(),
              ::testing::StartsWith("/work/runs/s3-bucket-a-run-"));
  EXPECT_EQ(stored.paths.at("output_dir").written, "s3://bucket/a/run");
  unsetenv("CAPSTAN_STORAGE_FOLDER");
  EXPECT_EQ(MustLoad("output_dir: \"file:///data/run\"").config.output_dir(),
            "/data/run");
  // Files' paths begin with it.
  for (const char* written : {"/data/run/", "file:///data/run/"}) {
    EXPECT_EQ(MustLoad(absl::StrCat("output_dir: \"", written, "\""))
                  .config.output_dir(),
              "/data/run")
        << written;
  }
  EXPECT_THAT(ErrorOf("output_dir: \"hdfs://host/run\""),
              HasSubstr("output_dir: is an address, hdfs://"));
  EXPECT_THAT(ErrorOf("output_dir: \"s3://id:secret@bucket/run\""),
              HasSubstr("an address has no credentials"));
}

// Nobody sees the lines of a text that was made for a model's folder.
TEST_F(LoadConfigTest, AMadeTextHasNoLines) {
  const auto loaded =
      ParseConfig("\nlaunch { processes: 3 }", "final", context_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->locations.at("launch.processes"), "final");
}

TEST_F(LoadConfigTest, LoadsThePluginsThatItNames) {
  const LoadedConfig loaded = MustLoad(
      "strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 } }\n"
      "train { max_steps: 7 }\n"
      "launch { processes: 3 }\n");
  EXPECT_EQ(loaded.config.train().max_steps(), 7);
  EXPECT_EQ(static_cast<int>(loaded.config.launch().processes()), 3);
  EXPECT_EQ(loaded.config.name(), "run");
  EXPECT_EQ(loaded.locations.at("strategy.bucket_cap_mib"), "run.pbtxt:1:42");
  const std::string printed = PrintConfig(loaded.config);
  EXPECT_THAT(printed, HasSubstr("[plugin/capstan.ddp.Config]"));
  EXPECT_THAT(printed, HasSubstr("bucket_cap_mib: 5"));
  EXPECT_TRUE(ParseConfig(printed, "printed", context_).ok());
}

TEST_F(LoadConfigTest, AutoIsAProcessCount) {
  const LoadedConfig loaded = MustLoad("launch { processes: AUTO }");
  EXPECT_EQ(loaded.config.launch().processes(), Launch::AUTO);
}

TEST_F(LoadConfigTest, ErrorsNameThePlaceAndWhatIsMeant) {
  const struct {
    const char* text;
    std::vector<const char*> said;
  } cases[] = {
      {"train {\n  max_step: 7\n}",
       {"run.pbtxt:2:", "\"max_step\"", "did you mean \"max_steps\"?"}},
      {"strategy { [plugin/capstan.ddp.Config] {\n bucket_cap: 5 } }",
       {"run.pbtxt:2:", "\"bucket_cap\"", "did you mean \"bucket_cap_mib\"?"}},
      {"train { max_steps: \"ten\" }", {"run.pbtxt:1:20", "integer"}},
      {"strategy { [plugin/capstan.ddq.Config] {} }",
       {"run.pbtxt:1:", "\"capstan.ddq\"", "libcapstan_ddq.so",
        "did you mean \"capstan.ddp\"?"}},
      {"strategy { [capstan.com/capstan.ddp.Config] {} }",
       {"[plugin/capstan.ddp.Config]"}},
      {"strategy {\n  [acme.lion.Config] {}\n}",
       {"run.pbtxt:2:20: ", "write [plugin/acme.lion.Config]"}},
      {"strategy { [capstan.ddp.Config] {} }",
       {"write [plugin/capstan.ddp.Config]"}},
      {"strategy { [plugin/ddp.Config] {} }",
       {"run.pbtxt:1:", "did you mean \"capstan.ddp\"?"}},
      {"strategy: nonsense", {"[plugin/PACKAGE.Config]"}},
  };
  for (const auto& [text, said] : cases) {
    for (const char* const part : said) {
      EXPECT_THAT(ErrorOf(text), HasSubstr(part)) << text;
    }
  }
  for (const char* text :
       {"strategy { ddp {} }", "strategy: ddp", "strategy: \"ddp\"",
        "strategy: capstan.ddp", "strategy { capstan.ddp {} }"}) {
    EXPECT_THAT(
        ErrorOf(text),
        AllOf(HasSubstr("run.pbtxt:1:"),
              HasSubstr("did you mean { [plugin/capstan.ddp.Config] {} }?")))
        << text;
  }
  EXPECT_THAT(ErrorOf("train: 3"), Not(HasSubstr("plugin")));
}

TEST_F(LoadConfigTest, WhatMayNotBeNegativeIsToldByItsField) {
  EXPECT_EQ(ErrorOf("name: \"x\"\ntrain { save_every: -1 }"),
            "run.pbtxt:2:9: train.save_every: must not be negative, is -1");
  EXPECT_THAT(ErrorOf("schedule { kind: WSD decay_steps: -2 }"),
              HasSubstr("schedule.decay_steps: must not be negative, is -2"));
  EXPECT_EQ(
      ErrorOf("", {"train.log_every=-3"}),
      "--set train.log_every=-3: train.log_every: must not be negative, is "
      "-3");
  EXPECT_EQ(MustLoad("train { max_epochs: -0.0 save_every: 0 }")
                .config.train()
                .save_every(),
            0);
}

TEST_F(LoadConfigTest, ASlotWhoseBytesDoNotParseIsAnError) {
  RunConfig config;
  config.mutable_strategy()->set_type_url("plugin/capstan.ddp.Config");
  config.mutable_strategy()->set_value("\xff");
  FieldPlaces places;
  const auto loaded = LoadMessage(
      Write("run.pbtxt", "strategy { [plugin/capstan.ddp.Config] {} }"),
      context_, &config, &places);
  EXPECT_THAT(std::string(loaded.status().message()),
              AllOf(HasSubstr("capstan.ddp"), HasSubstr("do not parse")));
}

TEST_F(LoadConfigTest, LaterFilesMergeOverEarlierOnes) {
  Write("a.pbtxt",
        "strategy { [plugin/capstan.ddp.Config] {"
        " bucket_cap_mib: 5 first_bucket_mib: 2 } }\n"
        "train { max_steps: 7 max_grad_norm: 1 }");
  Write("b.pbtxt",
        "strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 6 } }\n"
        "train { max_grad_norm: 0 }");
  const LoadedConfig loaded =
      Must(LoadConfig({"a.pbtxt", "b.pbtxt"}, {}, context_));
  EXPECT_EQ(loaded.config.train().max_steps(), 7);
  EXPECT_EQ(loaded.config.train().max_grad_norm(), 0.0);
  const std::string printed = PrintConfig(loaded.config);
  EXPECT_THAT(printed, HasSubstr("bucket_cap_mib: 6"));
  EXPECT_THAT(printed, HasSubstr("first_bucket_mib: 2"));
  EXPECT_EQ(loaded.locations.at("strategy.first_bucket_mib"), "a.pbtxt:1:60");
}

TEST_F(LoadConfigTest, AnotherPluginReplacesTheSlot) {
  const LoadedConfig loaded =
      MustLoad("strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 } }",
               {"strategy=capstan.single"});
  EXPECT_EQ(loaded.config.strategy().type_url(),
            "plugin/capstan.single.Config");
  EXPECT_EQ(loaded.locations.count("strategy.bucket_cap_mib"), 0);
}

TEST_F(LoadConfigTest, SetReachesIntoPlugins) {
  const LoadedConfig loaded =
      MustLoad("strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 } }",
               {"strategy.bucket_cap_mib=7.5", "name=my \"run\"",
                "schedule.kind=COSINE"});
  EXPECT_THAT(PrintConfig(loaded.config), HasSubstr("bucket_cap_mib: 7.5"));
  EXPECT_EQ(loaded.config.name(), "my \"run\"");
  EXPECT_EQ(loaded.config.schedule().kind(), Schedule::COSINE);
}

TEST_F(LoadConfigTest, SetOfAListReplacesIt) {
  const std::string text =
      "train { sample_prompts { prompt: \"old\" } }\n"
      "profile { steps: 9 }\n"
      "train_data { [plugin/capstan.chat.Config] { source { path: \"a\" } } }\n"
      "adapter { lora { target_modules: \"x\" } }";
  const LoadedConfig loaded = MustLoad(
      text, {"train.sample_prompts=[{prompt: \"a\"}, {user: \"b\"}]",
             "profile.steps=[3, 4]", "adapter.lora.target_modules=[\"q\", 'v']",
             "train_data.source=[{path: \"b\" weight: 2}, {path: \"c\"}]"});
  ASSERT_EQ(loaded.config.train().sample_prompts_size(), 2);
  EXPECT_EQ(loaded.config.train().sample_prompts(0).prompt(), "a");
  EXPECT_EQ(loaded.config.train().sample_prompts(1).user(), "b");
  EXPECT_THAT(loaded.config.profile().steps(), ElementsAre(3, 4));
  EXPECT_THAT(loaded.config.adapter().lora().target_modules(),
              ElementsAre("q", "v"));
  const std::string printed = PrintConfig(loaded.config);
  EXPECT_THAT(printed, HasSubstr(absl::StrCat("\"", folder_, "/b\"")));
  EXPECT_THAT(printed, HasSubstr(absl::StrCat("\"", folder_, "/c\"")));
  EXPECT_THAT(printed, Not(HasSubstr(absl::StrCat("\"", folder_, "/a\""))));
  EXPECT_THAT(loaded.locations.at("train_data.source[1].path"),
              HasSubstr("--set train_data.source=["));
  // One element needs no brackets.
  const LoadedConfig one =
      MustLoad(text, {"train.sample_prompts=prompt: \"c\"", "profile.steps=5"});
  ASSERT_EQ(one.config.train().sample_prompts_size(), 1);
  EXPECT_THAT(one.config.profile().steps(), ElementsAre(5));
}

TEST_F(LoadConfigTest, SetAddsToAList) {
  const LoadedConfig loaded = MustLoad(
      "train { sample_prompts { prompt: \"a\" } }\n"
      "profile { steps: 9 }\n"
      "train_data { [plugin/capstan.chat.Config] { source { path: \"a\" } } }",
      {"train.sample_prompts+={user: \"b\"}",
       "train.sample_prompts+=[{prompt: \"c\"}, {prompt: \"d\"}]",
       "profile.steps+=10", "profile.steps+=[11, 12]",
       "train_data.source+={path: \"b\"}"});
  ASSERT_EQ(loaded.config.train().sample_prompts_size(), 4);
  EXPECT_EQ(loaded.config.train().sample_prompts(0).prompt(), "a");
  EXPECT_EQ(loaded.config.train().sample_prompts(3).prompt(), "d");
  EXPECT_THAT(loaded.config.profile().steps(), ElementsAre(9, 10, 11, 12));
  EXPECT_THAT(PrintConfig(loaded.config),
              AllOf(HasSubstr(absl::StrCat("\"", folder_, "/a\"")),
                    HasSubstr(absl::StrCat("\"", folder_, "/b\""))));
  EXPECT_EQ(loaded.locations.at("train_data.source[0].path"), "run.pbtxt:3:54");
  EXPECT_THAT(loaded.locations.at("train_data.source[1].path"),
              HasSubstr("--set train_data.source+="));
}

TEST_F(LoadConfigTest, SetToNothingClears) {
  const LoadedConfig loaded = MustLoad(
      "name: \"x\"\n"
      "collect { [plugin/capstan.darkroom.Config] { tasks: 3 } }\n"
      "strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 "
      "first_bucket_mib: 2 } }\n"
      "schedule { kind: COSINE warmup_steps: 2 }\n"
      "train { max_steps: 7 seed: 3 sample_prompts { prompt: \"a\" } }\n"
      "profile { steps: [1, 2] }",
      {"collect=", "strategy.bucket_cap_mib=", "schedule=", "train.seed=",
       "train.sample_prompts=[]",
       "profile.steps=", "name=", "eval_data=", "adapter.lora="});
  EXPECT_FALSE(loaded.config.has_collect());
  EXPECT_FALSE(loaded.config.has_schedule());
  EXPECT_FALSE(loaded.config.has_adapter());
  EXPECT_EQ(loaded.config.train().seed(), 0);
  EXPECT_EQ(loaded.config.train().max_steps(), 7);
  EXPECT_EQ(loaded.config.train().sample_prompts_size(), 0);
  EXPECT_EQ(loaded.config.profile().steps_size(), 0);
  EXPECT_EQ(loaded.config.name(), "");
  EXPECT_THAT(PrintConfig(loaded.config),
              AllOf(HasSubstr("first_bucket_mib: 2"),
                    Not(HasSubstr("bucket_cap_mib"))));
  EXPECT_EQ(loaded.locations.count("schedule.warmup_steps"), 0);
  EXPECT_EQ(loaded.locations.at("strategy.bucket_cap_mib"),
            "--set strategy.bucket_cap_mib=");
  // Another plugin can replace an optional slot.
  const LoadedConfig again =
      MustLoad("", {"collect=capstan.darkroom", "collect.tasks=4"});
  EXPECT_THAT(PrintConfig(again.config),
              AllOf(HasSubstr("[plugin/capstan.darkroom.Config]"),
                    HasSubstr("tasks: 4")));
}

TEST_F(LoadConfigTest, StepsAndEpochsReplaceEachOther) {
  const std::string steps = "train { max_steps: 7 }";
  auto loaded = Load(steps, {"train.max_epochs=2"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.train().max_epochs(), 2);
  EXPECT_THAT(PrintConfig(loaded->config),
              AllOf(HasSubstr("max_epochs: 2"), Not(HasSubstr("max_steps"))));
  EXPECT_EQ(loaded->locations.count("train.max_steps"), 0);

  Write("a.pbtxt", steps);
  Write("b.pbtxt", "train { max_epochs: 3 } schedule { warmup_ratio: 0.1 }");
  Write("c.pbtxt", "schedule { warmup_steps: 4 }");
  loaded = LoadConfig({"a.pbtxt", "b.pbtxt", "c.pbtxt"}, {}, context_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->config.train().has_max_steps());
  EXPECT_EQ(loaded->config.train().max_epochs(), 3);
  EXPECT_FALSE(loaded->config.schedule().has_warmup_ratio());
  EXPECT_EQ(loaded->config.schedule().warmup_steps(), 4);

  // As in scripts written when both could be set.
  loaded = Load(steps, {"train.max_steps=0", "train.max_epochs=2"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config.train().max_epochs(), 2);
  EXPECT_THAT(ErrorOf("train { max_steps: 7 max_epochs: 2 }"),
              AllOf(HasSubstr("run.pbtxt:1:"),
                    HasSubstr("set either max_epochs or max_steps")));
}

TEST_F(LoadConfigTest, WarmupShrinksWithTheRun) {
  const std::string text =
      "train { max_steps: 1000 }\nschedule { warmup_steps: 100 }";
  const auto warmup = [&](const std::vector<std::string>& overrides) {
    const auto loaded = Load(text, overrides);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->notes.empty(),
              loaded->config.schedule().warmup_steps() == 100);
    return loaded->config.schedule().warmup_steps();
  };
  EXPECT_EQ(warmup({"train.max_steps=5"}), 1);
  EXPECT_EQ(warmup({"train.max_steps=95"}), 10);
  // Kept wherever it fits.
  EXPECT_EQ(warmup({"train.max_steps=100"}), 100);
  EXPECT_EQ(warmup({"train.max_steps=5", "train.max_steps=2000"}), 100);
  EXPECT_EQ(warmup({"train.max_steps=5", "schedule.total_steps=500"}), 100);
  EXPECT_THAT(
      Load(text, {"train.max_steps=5"})->notes,
      ElementsAre("schedule.warmup_steps is 1 of 5 steps, in proportion "
                  "to the 100 of 1000 at run.pbtxt:2:12"));
  // Values set together are intended.
  EXPECT_EQ(warmup({"schedule.warmup_steps=100", "train.max_steps=5"}), 100);
  const LoadedConfig file =
      MustLoad("train { max_steps: 5 } schedule { warmup_steps: 9 }");
  EXPECT_EQ(file.config.schedule().warmup_steps(), 9);
  // A later file lowers the run's length.
  Write("a.pbtxt", text);
  Write("b.pbtxt", "train { max_steps: 50 }");
  const LoadedConfig both =
      Must(LoadConfig({"a.pbtxt", "b.pbtxt"}, {}, context_));
  EXPECT_EQ(both.config.schedule().warmup_steps(), 5);
  EXPECT_EQ(both.notes.size(), 1);
}

TEST_F(LoadConfigTest, DecayShrinksWithTheRun) {
  const std::string text =
      "train { max_steps: 1000 }\n"
      "schedule { kind: WSD warmup_steps: 100 decay_steps: 300 }";
  const auto parts = [&](const std::vector<std::string>& overrides) {
    const auto loaded = Load(text, overrides);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    const Schedule& schedule = loaded->config.schedule();
    return std::make_pair(schedule.warmup_steps(), schedule.decay_steps());
  };
  // Both, where there is no room for both.
  EXPECT_EQ(parts({"train.max_steps=399"}), std::make_pair(40L, 119L));
  EXPECT_EQ(parts({"train.max_steps=400"}), std::make_pair(100L, 300L));
  EXPECT_EQ(parts({"train.max_steps=5"}), std::make_pair(1L, 1L));
  EXPECT_EQ(parts({"train.max_steps=2000"}), std::make_pair(100L, 300L));
  EXPECT_EQ(parts({"train.max_steps=5", "schedule.total_steps=500"}),
            std::make_pair(100L, 300L));
  EXPECT_EQ(parts({"schedule.decay_steps=3", "train.max_steps=50"}),
            std::make_pair(5L, 3L));
  EXPECT_THAT(
      Load(text, {"train.max_steps=10"})->notes,
      ElementsAre("schedule.warmup_steps is 1 of 10 steps, in proportion "
                  "to the 100 of 1000 at run.pbtxt:2:22",
                  "schedule.decay_steps is 3 of 10 steps, in proportion "
                  "to the 300 of 1000 at run.pbtxt:2:40"));
  const LoadedConfig epochs = MustLoad(text, {"train.max_epochs=2"});
  EXPECT_NEAR(epochs.config.schedule().decay_ratio(), 0.3, 1e-12);
  EXPECT_NEAR(epochs.config.schedule().warmup_ratio(), 0.1, 1e-12);
  const LoadedConfig ratio = MustLoad(
      "train { max_steps: 1000 }"
      "schedule { kind: WSD warmup_ratio: 0.5 decay_steps: 300 }",
      {"train.max_steps=500"});
  EXPECT_EQ(ratio.config.schedule().decay_steps(), 150);
}

TEST_F(LoadConfigTest, SetErrorsNameTheFlag) {
  const struct {
    const char* set;
    std::vector<const char*> said;
  } cases[] = {
      {"strategy=ddp", {"did you mean \"capstan.ddp\"?"}},
      {"strategy=capstan.command_llada",
       {"capstan.command_llada is a command, `trainer llada`, which a config "
        "can't name"}},
      {"train.max_steps+=1", {": += adds to a list", "train.max_steps=1"}},
      {"train.sample_prompts.prompt=x",
       {"\"sample_prompts\" is a list", "train.sample_prompts+="}},
      {"trian.max_steps=1", {"did you mean \"train\"?"}},
      {"profile.steps+=", {"nothing to append"}},
      {"profile.steps=[1, x]", {}},
      {"train.max_steps=x", {}},
      {"model.hidden_size=", {"no plugin is set for \"model\""}},
      {"model.hidden_size=1", {"no plugin is set for \"model\""}},
      {"nothing", {"write it path=value"}},
  };
  for (const auto& [set, said] : cases) {
    EXPECT_THAT(ErrorOf("", {set}), HasSubstr(absl::StrCat("--set ", set)));
    for (const char* const part : said) {
      EXPECT_THAT(ErrorOf("", {set}), HasSubstr(part));
    }
  }
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
  const LoadedConfig loaded = MustLoad(
      "train_data { [plugin/capstan.chat.Config] {\n"
      "  source { path: \"a.jsonl\" weight: 2 }\n"
      "  source { path: \"//a/b:c.jsonl\" }\n"
      "} }");
  EXPECT_THAT(
      PrintConfig(loaded.config),
      AllOf(HasSubstr(absl::StrCat("\"", folder_, "/a.jsonl\"")),
            HasSubstr("weight: 2"), HasSubstr("\"/build/a/b/c.jsonl\"")));
  EXPECT_EQ(loaded.locations.at("train_data.source[1].path"), "run.pbtxt:3:12");
}

TEST_F(LoadConfigTest, ConfigsAreFoundInTheWorkspaceToo) {
  std::filesystem::create_directories(folder_ + "/w/configs");
  Write("w/configs/only_there.pbtxt", "train { max_steps: 3 }");
  context_.workspace_folder = folder_ + "/w";
  const LoadedConfig loaded =
      Must(LoadConfig({"only_there.pbtxt"}, {}, context_));
  EXPECT_EQ(loaded.config.train().max_steps(), 3);
  EXPECT_THAT(
      std::string(LoadConfig({"no.pbtxt"}, {}, context_).status().message()),
      AllOf(HasSubstr("no.pbtxt"), HasSubstr("configs/no.pbtxt")));
}

TEST_F(LoadConfigTest, LocateNamesTheFieldOrTheNearestAround) {
  const LoadedConfig loaded = MustLoad(
      "strategy { [plugin/capstan.ddp.Config] { bucket_cap_mib: 5 } }");
  EXPECT_EQ(
      loaded.Locate(FieldError("bucket_cap_mib", "bad"), "strategy").message(),
      "run.pbtxt:1:42: strategy.bucket_cap_mib: bad");
  EXPECT_EQ(loaded.Locate(FieldError("first_bucket_mib", "bad"), "strategy")
                .message(),
            "run.pbtxt:1:1: strategy.first_bucket_mib: bad");
}

TEST_F(LoadConfigTest, APathThatIsntThereHasACodeOfItsOwn) {
  const LoadedConfig loaded = MustLoad(
      "train_data { [plugin/capstan.chat.Config] { path: \"no.jsonl\" } }");
  const auto code = [&](const absl::Status& status) {
    return CodeOf(loaded.Locate(status, "train_data"));
  };
  EXPECT_EQ(code(FieldError("path", "can't be opened")), "path/missing");
  EXPECT_EQ(code(absl::NotFoundError("no such folder")), "path/missing");
  EXPECT_EQ(code(FieldError("max_length", "is 1")), "data/settings");
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

TEST_F(LoadConfigTest, ARunStaysInRuns) {
  for (const char* name : {"../..", "..", "a/../../b", "/tmp/x"}) {
    EXPECT_THAT(
        ErrorOf(absl::StrCat("name: \"", name, "\"")),
        AllOf(HasSubstr(absl::StrCat("run.pbtxt:1:1: name: is \"", name)),
              HasSubstr("give a name without ..")));
  }
  EXPECT_THAT(ErrorOf("", {"name=../x"}), HasSubstr("name: is \"../x\""));
  EXPECT_TRUE(Load("name: \"first..try/2\"").ok());
}

TEST_F(LoadConfigTest, NamesThatAreTooLongAreNotFound) {
  const std::string name(300, 'x');
  EXPECT_THAT(std::string(LoadConfig({name}, {}, context_).status().message()),
              HasSubstr("no such file"));
  EXPECT_THAT(
      ErrorOf(absl::StrCat("strategy { [plugin/", name, ".Config] {} }")),
      HasSubstr("there is no plugin"));
}

// A line that would only give the next error isn't offered.
TEST_F(LoadConfigTest, AFieldThatIsThereIsNotMendedIntoTheTextAgain) {
  const absl::Status either =
      Load("train {\n  max_steps: 7\n  epochs: 3\n}").status();
  EXPECT_FALSE(MendOf(either).has_value()) << either;
  EXPECT_EQ(CodeOf(either), "config/either");
  EXPECT_THAT(std::string(either.message()),
              AllOf(HasSubstr("here it is called \"max_epochs\"; but then "),
                    HasSubstr("max_steps"), HasSubstr("remove one of them")));
  const absl::Status twice =
      Load("train {\n  max_stps: 3\n  max_steps: 7\n}").status();
  EXPECT_FALSE(MendOf(twice).has_value()) << twice;
  EXPECT_EQ(CodeOf(twice), "config/twice");
  EXPECT_TRUE(MendOf(Load("train {\n  epochs: 3\n}").status()).has_value());
}

TEST_F(LoadConfigTest, ASlotWithoutAPluginAndAnotherProgramsFileAreTold) {
  const absl::Status empty = Load("optimizer {}").status();
  EXPECT_EQ(CodeOf(empty), "config/missing");
  EXPECT_THAT(std::string(empty.message()),
              HasSubstr("run.pbtxt:1:1: optimizer: names no plugin"));
  const auto told = [&](const std::string& name, const std::string& text) {
    return std::string(
        LoadConfig({Write(name, text)}, {}, context_).status().message());
  };
  EXPECT_THAT(told("qlora.yml", "base_model: x\n"),
              HasSubstr("`trainer import qlora.yml --output=run.pbtxt`"));
  EXPECT_THAT(told("chats.jsonl", "{\"text\": \"a\"}\n"),
              HasSubstr("`trainer init --data=chats.jsonl`"));
}

TEST_F(LoadConfigTest, HostileTextsAreErrors) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "train { ";
  for (const std::string& text :
       {deep, std::string(100000, '{'), std::string("\0\xff", 2),
        std::string("name: \"")}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("run.pbtxt:1:"));
  }
}

}  // namespace
}  // namespace capstan
