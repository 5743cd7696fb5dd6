// SPDX-License-Identifier: Apache-2.0
//
// Files that `trainer script` prints; tests/clusters submits them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class ScriptTest : public ::testing::Test {
 protected:
  ScriptTest() {
    data_ = WriteText(folder_ + "/text.txt", std::string(1000, 'a'));
    const RunText run = RunText().Set("train_data", TextData(data_, 32));
    config_ = "--config=" + run.File();
  }

  TrainerResult Script(const std::string& launcher,
                       const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {"script", "--for=" + launcher, config_,
                                     "--nodes=2", "--processes=4"};
    args.insert(args.end(), more.begin(), more.end());
    return RunTrainer(args);
  }

  const std::string folder_ = NewTestFolder("shared");
  std::string data_;
  std::string config_;
};

// Pods had the paths of the machine that the script was printed on.
TEST_F(ScriptTest, PodsSeeTheSharedFolderUnderItsNameThere) {
  const TrainerResult result =
      Script("k8s", {"--shared=" + folder_, "--plugin_path=" + folder_, "--set",
                     "output_dir=" + folder_ + "/runs/one"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("path: \"/shared/text.txt\""),
                                HasSubstr("\"--plugin_path=/shared\""),
                                HasSubstr("\"output_dir=/shared/runs/one\""),
                                Not(HasSubstr(folder_))));
  // Paths that aren't here are the pods'.
  const TrainerResult theirs =
      Script("k8s", {"--set", "train_data.path=/shared/there.txt"});
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  EXPECT_THAT(theirs.out, HasSubstr("path: \"/shared/there.txt\""));
}

// A path was looked for in the config's text, which has it escaped, and where
// it is a text of another kind.
TEST_F(ScriptTest, OnlyPathsAreThePods) {
  const std::string data = WriteText(folder_ + "/gem\u00e4lde.txt", "aaaa");
  const TrainerResult result = Script(
      "k8s",
      {"--shared=" + folder_, "--set", "train_data.path=" + data, "--set",
       "eval_data=[plugin/capstan.chat.Config] { source "
       "{ path: \"" +
           folder_ + "/part-*.jsonl\" } }",
       "--set", "train.sample_prompts=prompt: \"" + folder_ + "\""});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("path: \"/shared/gem\\303\\244lde.txt\""),
                    HasSubstr("path: \"/shared/part-*.jsonl\""),
                    HasSubstr("prompt: \"" + folder_ + "\"")));
}

TEST_F(ScriptTest, WhatNoPodSeesIsAnError) {
  ExpectOneError(Script("k8s"), {"run.pbtxt:", "train_data.path: ", data_,
                                 "--shared", "--set train_data.path=/shared"});
  const std::string pattern = folder_ + "/*.txt";
  ExpectOneError(Script("k8s", {"--set", "train_data.path=" + pattern}),
                 {"train_data.path: ", pattern, "--shared"});
  ExpectOneError(
      Script("k8s", {"--shared=" + folder_.substr(0, folder_.size() - 1)}),
      {data_, "copy it into"});
  ExpectOneError(Script("k8s", {"--shared=" + folder_, "--set",
                                "output_dir=/scratch/one"}),
                 {"output_dir: /scratch/one isn't shared"});
  ExpectOneError(Script("k8s", {"--shared=" + folder_, "--request=8Gi"}),
                 {"--request=8Gi: write NAME=VALUE"});
}

TEST_F(ScriptTest, PodsAskForWhatTheyNeed) {
  const TrainerResult plain = Script("k8s", {"--shared=" + folder_});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(
      plain.out,
      AllOf(HasSubstr("resources: {\"requests\":{\"cpu\":\"4\"}}"),
            HasSubstr("nodeSelector: {}"), HasSubstr("DisruptionTarget"),
            HasSubstr("runAsNonRoot: true"), Not(HasSubstr("IPC_LOCK")),
            Not(ContainsRegex("@[A-Z_]+@"))));
  const TrainerResult more = Script(
      "k8s", {"--shared=" + folder_, "--gpus", "--request=memory=64Gi",
              "--request=cpu=32", "--rdma=rdma/hca=1", "--node_selector=a=b"});
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_THAT(
      more.out,
      AllOf(HasSubstr("\"limits\":{\"memory\":\"64Gi\",\"nvidia.com/gpu\":"
                      "\"4\",\"rdma/hca\":\"1\"}"),
            HasSubstr("\"cpu\":\"32\""), HasSubstr("IPC_LOCK"),
            HasSubstr("nodeSelector: {\"a\":\"b\"}")));
}

// One that was killed for want of memory isn't the config's.
TEST_F(ScriptTest, OnlyWhatNoTryMendsFailsTheJob) {
  const TrainerResult result = Script("k8s", {"--shared=" + folder_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("          containerName: check\n"
                                    "          operator: In\n"
                                    "          values: [1, 2]\n"));
  EXPECT_EQ(
      RunTrainer({"check", config_, "--set", "train.max_steps=-1"}).exit_code,
      1);
  EXPECT_EQ(RunTrainer({"check", config_, "--max_steps=1"}).exit_code, 2);
}

TEST_F(ScriptTest, PbsAndLsfStartMpirunOnTheirHosts) {
  const TrainerResult pbs = Script("PBS", {"--gpus"});
  ASSERT_EQ(pbs.exit_code, 0) << pbs.err;
  EXPECT_THAT(pbs.out,
              AllOf(HasSubstr("#PBS -l select=2:ncpus=4:mpiprocs=4:ngpus=4\n"),
                    HasSubstr("hostfile=$PBS_NODEFILE\n"),
                    HasSubstr("--map-by ppr:4:node"), HasSubstr("-np 8 "),
                    Not(ContainsRegex("@[A-Z_]+@"))));
  const TrainerResult lsf = Script("lsf");
  ASSERT_EQ(lsf.exit_code, 0) << lsf.err;
  EXPECT_THAT(lsf.out,
              AllOf(HasSubstr("#BSUB -n 8\n"), HasSubstr("span[ptile=4]"),
                    HasSubstr("hostfile=$LSB_DJOB_HOSTFILE\n"),
                    Not(HasSubstr("#BSUB -gpu"))));
}

// SIGTERM goes to the whole job: the shell died of it before the ranks had
// saved.
TEST_F(ScriptTest, PbsAndLsfWaitUntilTheRanksHaveSaved) {
  for (const std::string launcher : {"pbs", "lsf"}) {
    for (const std::string code : {"131", "1"}) {
      const std::string job = NewTestFolder(launcher + code);
      const TrainerResult result = Script(launcher);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      WriteText(job + "/script", result.out);
      // A shell can't trap what is ignored when it starts.
      WriteText(job + "/mpirun",
                "#!/bin/bash\n[ \"$1\" = --version ] && exit\n"
                "trap 'sleep 0.5; echo saved >> saved; exit " +
                    code +
                    "' TERM\ntouch started\nwhile :; do sleep 0.1; done\n");
      TrainerOptions shell;
      shell.binary = "/bin/bash";
      shell.folder = job;
      const std::string command =
          "chmod +x mpirun && set -m && "
          "export MPIRUN=./mpirun PBS_O_WORKDIR=. && { bash script & } && "
          "for _ in $(seq 600); do [ -e started ] && break; sleep 0.1; done; "
          "kill -TERM -- -$! && wait $!";
      const TrainerResult ended = RunTrainer({"-c", command}, shell);
      EXPECT_EQ(ended.exit_code, std::stoi(code))
          << launcher << ": " << ended.err;
      EXPECT_EQ(CountLines(job + "/saved"), 1) << launcher << " " << code;
    }
  }
}

}  // namespace
}  // namespace capstan
