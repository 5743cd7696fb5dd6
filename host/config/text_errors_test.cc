// SPDX-License-Identifier: Apache-2.0
//
// What a config's mistakes are told as, and the line that mends them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/files.h"
#include "host/config/load_config.h"
#include "host/config/mend.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class TextErrorsTest : public ::testing::Test {
 protected:
  TextErrorsTest()
      : host_({absl::StrCat(std::getenv("TEST_SRCDIR"),
                            "/capstan/trainer/plugins")}) {
    context_.host = &host_;
    context_.caller_folder = ::testing::TempDir();
    path_ = (std::filesystem::path(::testing::TempDir()) / "run.pbtxt")
                .lexically_normal()
                .string();
  }

  absl::Status ErrorOf(const std::string& text,
                       const std::vector<std::string>& sets = {}) {
    std::ofstream(path_) << text;
    return LoadConfig({"run.pbtxt"}, sets, context_).status();
  }

  std::string TextOf(const std::string& text,
                     const std::vector<std::string>& sets = {}) {
    return std::string(ErrorOf(text, sets).message());
  }

  // The mended line; "" if there is none.
  std::string MendedLine(const std::string& text) {
    const auto mend = MendOf(ErrorOf(text));
    return mend.has_value() ? mend->after : "";
  }

  PluginHost host_;
  ConfigContext context_;
  std::string path_;
};

TEST_F(TextErrorsTest, EnumsListTheirValuesNearestFirst) {
  const std::string text = "schedule {\n  kind: cosin  # soft\n}";
  EXPECT_THAT(TextOf(text),
              HasSubstr("schedule.kind: must be one of COSINE, "
                        "CONSTANT, LINEAR, WSD, ONE_CYCLE, is cosin"));
  EXPECT_EQ(MendedLine(text), "  kind: COSINE  # soft");
  EXPECT_EQ(MendedLine("schedule { kind: \"COSINE\" }"),
            "schedule { kind: COSINE }");
  EXPECT_EQ(CodeOf(ErrorOf(text)), "config/type");
}

TEST_F(TextErrorsTest, BracesAreCounted) {
  EXPECT_THAT(TextOf("train {\n  max_steps: 5\n"),
              HasSubstr("the text ends within train { ..: a } is missing"));
  EXPECT_THAT(TextOf("train { max_steps: 5 }\n}\n"),
              HasSubstr("run.pbtxt:2:1: there is a } too many"));
}

TEST_F(TextErrorsTest, BooleansNumbersAndTexts) {
  EXPECT_THAT(TextOf("train { keep_best: yes }"),
              HasSubstr("train.keep_best: must be true or false, is yes"));
  EXPECT_EQ(MendedLine("train { keep_best: yes }"),
            "train { keep_best: true }");
  EXPECT_EQ(MendedLine("train { max_steps: \"10\" }"),
            "train { max_steps: 10 }");
  EXPECT_EQ(MendedLine("train {\n\tmax_steps: 1e3 }"), "\tmax_steps: 1000 }");
  EXPECT_THAT(TextOf("launch { nodes: 3000000000 }"),
              HasSubstr("from -2147483648 to 2147483647"));
  EXPECT_EQ(MendedLine("name: mine"), "name: \"mine\"");
  EXPECT_EQ(MendedLine("output_dir: my-runs/a  # b"),
            "output_dir: \"my-runs/a\"  # b");
  EXPECT_EQ(MendedLine("train { max_steps: few }"), "");
}

TEST_F(TextErrorsTest, OthersNamesAreToldOurs) {
  EXPECT_EQ(MendedLine("train {\n  num_train_epochs: 3\n}"), "  max_epochs: 3");
  EXPECT_EQ(MendedLine("optimizer {\n  [plugin/capstan.adamw.Config] {\n"
                       "    lr: 1e-3\n  }\n}"),
            "    learning_rate: 1e-3");
  EXPECT_THAT(TextOf("num_train_epochs: 3"),
              HasSubstr("did you mean train.max_epochs?"));
  // The value is another: no line is known.
  const std::string accumulation = "batch { gradient_accumulation_steps: 4 }";
  EXPECT_THAT(TextOf(accumulation),
              HasSubstr("here it is called \"global_batch_size\" ("));
  EXPECT_EQ(MendedLine(accumulation), "");
  EXPECT_THAT(TextOf("report_to: \"none\""), HasSubstr("leave it out"));
  EXPECT_THAT(TextOf("optimizer { [plugin/capstan.adamw.Config] {} }",
                     {"optimizer.lr=1"}),
              AllOf(HasSubstr("--set optimizer.lr=1"),
                    HasSubstr("called \"learning_rate\"")));
}

TEST_F(TextErrorsTest, OfWhatStandsTwiceOrElsewhere) {
  EXPECT_THAT(TextOf("train { seed: 1 }\ntrain { seed: 2 }"),
              AllOf(HasSubstr("run.pbtxt:2:"), HasSubstr("\"train\""),
                    HasSubstr("twice")));
  EXPECT_THAT(TextOf("max_steps: 3"), HasSubstr("train.max_steps"));
}

TEST_F(TextErrorsTest, CommentsBeginWithHash) {
  for (const char* text :
       {"// mine\ntrain {}", "train { max_steps: 3 }\n// mine",
        "train { max_steps: 3 // mine\n}"}) {
    EXPECT_THAT(TextOf(text), HasSubstr("comments begin with #")) << text;
    EXPECT_THAT(MendedLine(text), EndsWith("# mine")) << text;
  }
}

TEST_F(TextErrorsTest, AFileOfAnotherKindIsNotMended) {
  for (const char* text :
       {"// Copyright\nint main() { return 0; }\n", "// Only this\n",
        "learning_rate: 1e-4\noutput_dir: ./out\n"}) {
    EXPECT_EQ(MendedLine(text), "") << text;
  }
}

TEST_F(TextErrorsTest, TheOtherLineIsNamed) {
  EXPECT_THAT(TextOf("train {\n max_steps: 1\n max_steps: 2\n}"),
              AllOf(HasSubstr("run.pbtxt:3:"), HasSubstr("first in line 2")));
  EXPECT_THAT(TextOf("train {\n max_steps: 1\n max_epochs: 2\n}"),
              HasSubstr("set either max_epochs or max_steps, which is in line "
                        "2"));
  // Not that of another message.
  EXPECT_THAT(TextOf("optimizer {\n [plugin/capstan.adamw.Config] {\n"
                     "  beta1: 0 } }\ntrain { seed: 1\n seed: 2 }"),
              HasSubstr("first in line 4"));
}

TEST_F(TextErrorsTest, ANameThatIsAtTheTop) {
  EXPECT_THAT(TextOf("train { output_dir: \"out\" }"),
              HasSubstr("did you mean output_dir at the top level?"));
  // Of a plugin that is the usual one.
  EXPECT_THAT(TextOf("learning_rate: 1"),
              HasSubstr("did you mean optimizer.learning_rate?"));
}

TEST_F(TextErrorsTest, PluginsAreWritten) {
  EXPECT_EQ(MendedLine("precision: bf16  # fast"),
            "precision: { [plugin/capstan.bf16.Config] {} }  # fast");
  EXPECT_EQ(MendedLine("\tstrategy: \"fsdp\""),
            "\tstrategy: { [plugin/capstan.fsdp.Config] {} }");
  EXPECT_EQ(MendedLine("optimizer { adamw { learning_rate: 1e-4 } }"),
            "optimizer { [plugin/capstan.adamw.Config] "
            "{ learning_rate: 1e-4 } }");
  // A collector's kind isn't known.
  EXPECT_EQ(MendedLine("collect: text"), "");
  // A strategy is no precision.
  EXPECT_THAT(TextOf("precision: ddp"), HasSubstr("PACKAGE"));
  EXPECT_THAT(TextOf("precision { [plugin/capstan.int4.Config] {} }"),
              Not(HasSubstr("dpo\"?")));
  EXPECT_THAT(TextOf("optimizer { lr: 1e-4 }"),
              HasSubstr("write optimizer { [plugin/capstan.adamw.Config] { "
                        "learning_rate: 1e-4 } }"));
  EXPECT_THAT(TextOf("train_data { [plugin/capstan.text.Config] {} }\n"
                     "eval_data { path: \"x.txt\" }"),
              HasSubstr("write eval_data { [plugin/capstan.text.Config] { "
                        "path: \"x.txt\" } }"));
  EXPECT_THAT(TextOf("train_data: \"x.jsonl\""),
              HasSubstr("write train_data { [plugin/capstan.chat.Config] { "
                        "path: \"x.jsonl\" } }"));
  EXPECT_THAT(TextOf("model: \"OWNER/NAME\""),
              HasSubstr("write model { [plugin/capstan.decoder.Config] { "
                        "pretrained: \"hf:OWNER/NAME\" } }"));
}

TEST_F(TextErrorsTest, AnothersValueIsOurs) {
  EXPECT_EQ(MendedLine("train { gradient_checkpointing: true seed: 1 }"),
            "train { activation_checkpointing: EVERY_UNIT seed: 1 }");
  EXPECT_EQ(MendedLine("train { gradient_checkpointing: false }"), "");
}

TEST_F(TextErrorsTest, AProposalOfAnotherKindSaysSo) {
  EXPECT_THAT(TextOf("objective { [plugin/capstan.lama.Config] {} }"),
              AllOf(HasSubstr("\"capstan.llama\"?"),
                    HasSubstr("category is model, and objective takes")));
  EXPECT_THAT(TextOf("model { [plugin/capstan.lama.Config] {} }"),
              Not(HasSubstr("category")));
}

TEST_F(TextErrorsTest, WhatCantBeMendedDoesntHideWhatCan) {
  const std::string text =
      "train {\n  max_steps: few\n  log_evry: 3\n}\nnmae: \"a\"\n";
  absl::Status status = ErrorOf(text);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("run.pbtxt:2:"), Not(HasSubstr("--apply"))));
  for (const char* line : {"  log_every: 3", "name: \"a\""}) {
    const auto mend = MendOf(status);
    ASSERT_TRUE(mend.has_value()) << line;
    EXPECT_EQ(mend->after, line);
    ASSERT_TRUE(ApplyMend(*mend).ok());
    status = LoadConfig({"run.pbtxt"}, {}, context_).status();
  }
  // What is left.
  EXPECT_FALSE(MendOf(status).has_value());
  EXPECT_THAT(std::string(status.message()), HasSubstr("run.pbtxt:2:"));
}

// Each line is read again without those before it: there is an end to that.
TEST_F(TextErrorsTest, NotAllOfALongFileIsSearchedForAMend) {
  std::string text;
  const auto mended = [&](int lines) {
    text.clear();
    for (int i = 0; i < lines; ++i) {
      absl::StrAppend(&text, "train { max_steps: few }\n");
    }
    return MendedLine(absl::StrCat(text, "nmae: \"a\""));
  };
  EXPECT_EQ(mended(5), "name: \"a\"");
  EXPECT_EQ(mended(100), "");
  EXPECT_THAT(TextOf(text), HasSubstr("run.pbtxt:1:"));
}

TEST_F(TextErrorsTest, AMendChangesOnlyItsLine) {
  const absl::Status status =
      ErrorOf("# mine\r\ntrain {\r\n  max_step: 7  # few\r\n}");
  ASSERT_TRUE(MendOf(status).has_value()) << status;
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("\"max_steps\"? Write max_steps: 7  # few (--apply does)"));
  const auto diff = ApplyMend(*MendOf(status));
  ASSERT_TRUE(diff.ok()) << diff.status();
  EXPECT_THAT(*diff,
              AllOf(HasSubstr("-  max_step: 7"), HasSubstr("+  max_steps: 7")));
  std::stringstream text;
  text << std::ifstream(path_).rdbuf();
  EXPECT_EQ(text.str(), "# mine\r\ntrain {\r\n  max_steps: 7  # few\r\n}");
  // Not twice.
  EXPECT_FALSE(ApplyMend(*MendOf(status)).ok());
}

TEST_F(TextErrorsTest, AMendedFileKeepsItsLinksAndRights) {
  const std::string other = path_ + ".other";
  for (const nlink_t links : {1, 2}) {
    const absl::Status status = ErrorOf("nmae: \"a\"");
    std::filesystem::remove(other);
    if (links == 2) std::filesystem::create_hard_link(path_, other);
    ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
    ASSERT_TRUE(ApplyMend(*MendOf(status)).ok());
    struct stat info = {};
    ASSERT_EQ(stat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_nlink, links);
    EXPECT_EQ(info.st_mode & 0777, 0600);
    EXPECT_EQ(ReadWholeFile(links == 2 ? other : path_).value_or(""),
              "name: \"a\"");
  }
}

// A limit on files' sizes stands for a full disk.
TEST_F(TextErrorsTest, WithoutRoomTheOldTextStays) {
  const std::string text = "train { max_step: 7 }";
  const absl::Status status = ErrorOf(text);  // max_steps
  ASSERT_TRUE(MendOf(status).has_value());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit full = before;
  full.rlim_cur = text.size();
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const auto applied = ApplyMend(*MendOf(status));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(applied.ok());
  EXPECT_EQ(ReadWholeFile(path_).value_or(""), text);
}

}  // namespace
}  // namespace capstan
