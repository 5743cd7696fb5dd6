// SPDX-License-Identifier: Apache-2.0
//
// What the trainer does on machines of all kinds: fake ones, below a folder,
// with a driver that is told by variables. docs/gpus.md has the table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

constexpr char kOnCpu[] = "x CPU";
// What every error about GPUs ends with.
constexpr char kByChoice[] = "(set CUDA_VISIBLE_DEVICES= to train on the CPU";
// A GPU that there is, but nothing to run it with: not a run on the CPU.
constexpr char kNoDevice[] = "can't use the GPU: the driver's library";
constexpr char kNoParts[] = "was built without its GPU parts";

// A machine's files, and the environment of those who log in.
class Machine {
 public:
  Machine() : root_(NewTestFolder("machine")) {
    environment_["CAPSTAN_MACHINE_ROOT"] = root_;
  }

  Machine& Has(const std::string& path) {
    const fs::path full = root_ + "/" + path;
    fs::create_directories(full.parent_path());
    WriteText(full, "");
    return *this;
  }
  Machine& HasCards(int cards) {
    for (int i = 0; i < cards; ++i) {
      Has(absl::StrCat("proc/driver/nvidia/gpus/0000:0", i + 1,
                       ":00.0/information"));
      Has(absl::StrCat("dev/nvidia", i));
    }
    return Has("dev/nvidiactl").Has("proc/driver/nvidia/version");
  }
  Machine& HasDriver(const std::string& settings,
                     const std::string& folder = "usr/lib") {
    for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
      Has(folder + "/" + name);
      fs::copy_file(Runfile("base/libfake_driver.so"),
                    absl::StrCat(root_, "/", folder, "/", name),
                    fs::copy_options::overwrite_existing);
    }
    environment_["CAPSTAN_FAKE_DRIVER"] = settings;
    return *this;
  }
  Machine& Sets(const std::string& name, const std::string& value) {
    environment_[name] = value;
    return *this;
  }

  TrainerResult Call(const std::vector<std::string>& args) const {
    TrainerOptions options;
    options.environment = environment_;
    return RunTrainer(args, options);
  }
  TrainerResult Train(RunText run = RunText()) const {
    run.Train("max_steps: 1").Output(NewTestFolder("output"));
    return Call({"--config=" + run.File()});
  }
  // What `trainer env` says after "gpus".
  std::string Gpus() const {
    const std::string text = Call({"env"}).out;
    const size_t begin = text.find("\ngpus ");
    if (begin == std::string::npos) return "no line about GPUs in " + text;
    const size_t number = text.find_first_not_of(' ', begin + 6);
    return text.substr(number, text.find('\n', number) - number);
  }

 private:
  std::string root_;
  std::map<std::string, std::string> environment_;
};

void ExpectCpu(const Machine& machine, const std::string& note = "") {
  EXPECT_EQ(machine.Gpus(), "0");
  const TrainerResult run = machine.Train();
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out + run.err, AllOf(HasSubstr(kOnCpu), HasSubstr(note)));
}

// An error before anything is started or written.
void ExpectError(const Machine& machine, const std::string& error) {
  EXPECT_EQ(machine.Gpus(), "0");
  const TrainerResult run = machine.Train();
  EXPECT_EQ(run.exit_code, 1) << run.out;
  EXPECT_THAT(run.err, AllOf(HasSubstr(error), HasSubstr(kByChoice)));
  EXPECT_THAT(run.out + run.err, Not(HasSubstr(kOnCpu)));
}

void ExpectGpus(const Machine& machine, int gpus) {
  EXPECT_EQ(machine.Gpus(), absl::StrCat(gpus));
  const TrainerResult run = machine.Train();
  EXPECT_NE(run.exit_code, 0) << run.out;
  EXPECT_THAT(run.err, AllOf(AnyOf(HasSubstr(kNoDevice), HasSubstr(kNoParts)),
                             HasSubstr(kByChoice)));
  EXPECT_THAT(run.out + run.err, Not(HasSubstr(kOnCpu)));
}

TEST(MachinesTest, WithoutADriver) { ExpectCpu(Machine()); }

TEST(MachinesTest, TwoCards) {
  Machine machine;
  machine.HasCards(2).HasDriver("gpus=2");
  ExpectGpus(machine, 2);
  EXPECT_THAT(machine.Call({"env"}).out,
              AllOf(HasSubstr("NVIDIA Fake 1, 81920 MiB (79872 free), compute "
                              "capability 9.0, GPU-a1"),
                    HasSubstr("580.65.06")));
}

TEST(MachinesTest, TwoCardsOfWhichOneIsVisible) {
  Machine machine;
  machine.HasCards(2).HasDriver("gpus=2");
  ExpectGpus(machine.Sets("CUDA_VISIBLE_DEVICES", "1"), 1);
  ExpectGpus(machine.Sets("CUDA_VISIBLE_DEVICES", "GPU-a1000000"), 1);
}

TEST(MachinesTest, NoneByChoice) {
  Machine machine;
  machine.HasCards(2).HasDriver("gpus=2,crash=cuInit");
  ExpectCpu(machine.Sets("CUDA_VISIBLE_DEVICES", ""));
  ExpectCpu(machine.Sets("CUDA_VISIBLE_DEVICES", "-1"));
}

TEST(MachinesTest, AnIndexThatIsNotThere) {
  Machine machine;
  machine.HasCards(2).HasDriver("gpus=2");
  ExpectError(machine.Sets("CUDA_VISIBLE_DEVICES", "2"),
              "CUDA_VISIBLE_DEVICES is \"2\", which names no GPU");
}

TEST(MachinesTest, Mig) {
  Machine machine;
  machine.HasCards(1).HasDriver("gpus=1,mig");
  machine.Sets("CUDA_VISIBLE_DEVICES",
               "MIG-a0000000-0000-0000-0000-000000000000");
  ExpectGpus(machine, 1);
  EXPECT_THAT(machine.Call({"env"}).out, HasSubstr("MIG-a0000000-0000"));
}

TEST(MachinesTest, Wsl) {
  Machine machine;
  machine.Has("dev/dxg");
  ExpectCpu(machine);
  ExpectGpus(machine.HasDriver("gpus=1", "usr/lib/wsl/lib"), 1);
}

TEST(MachinesTest, ContainerByCdi) {
  Machine machine;
  ExpectGpus(
      machine.Has("dev/nvidiactl").Has("dev/nvidia2").HasDriver("gpus=1"), 1);
}

TEST(MachinesTest, ContainerThatWasGivenNone) {
  Machine machine;
  machine.Has("proc/driver/nvidia/gpus/0000:01:00.0/information");
  ExpectCpu(machine, "has 1 NVIDIA GPUs, but none is given");
}

TEST(MachinesTest, ContainerWithoutTheDriversLibraries) {
  Machine machine;
  ExpectError(machine.HasCards(1),
              "there is a GPU, but not the driver's library");
}

TEST(MachinesTest, OldDriver) {
  Machine machine;
  machine.HasCards(1).HasDriver("cuda=12040,driver=550.54.14");
  ExpectError(machine,
              "the NVIDIA driver 550.54.14 is for CUDA up to 12.4, "
              "but this program needs CUDA 13.0, hence driver 580");
}

// What is planned for GPUs elsewhere doesn't ask this machine's.
TEST(MachinesTest, PlansForOtherMachines) {
  Machine machine;
  machine.HasCards(1).HasDriver("hang=cuInit");
  // Who asked would be killed, waiting.
  machine.Sets("CAPSTAN_GPU_SECONDS", "3600");
  RunText run = RunText().Precision("auto").Output(NewTestFolder("output"));
  const std::string config = "--config=" + run.File();
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{},
        {"--gpu_memory=24GiB"},
        {"--gpu_memory=24GiB", "--set", "batch.micro_batch_size=AUTO", "--set",
         "batch.global_batch_size=16"}}) {
    std::vector<std::string> args = {"plan", "--gpus=2", config, "--set",
                                     "strategy=capstan.ddp"};
    args.insert(args.end(), more.begin(), more.end());
    const TrainerResult plan = machine.Call(args);
    EXPECT_EQ(plan.exit_code, 0) << plan.err;
    EXPECT_THAT(plan.out, HasSubstr("2 x GPU\n"));
  }
}

TEST(MachinesTest, DriverThatHangs) {
  Machine machine;
  machine.HasCards(1).HasDriver("hang=cuInit");
  machine.Sets("CAPSTAN_GPU_SECONDS", "0.5");
  ExpectError(machine,
              "the NVIDIA driver did not answer within 0.5 s (in "
              "cuInit)");
}

TEST(MachinesTest, DriverThatCrashes) {
  Machine machine;
  machine.HasCards(1).HasDriver("crash=cuInit");
  ExpectError(machine, "the NVIDIA driver crashed: signal 11");
}

TEST(MachinesTest, NoFabricManager) {
  Machine machine;
  machine.HasCards(8).HasDriver("gpus=8,init=802");
  ExpectError(machine, "start it (set");
}

// srun --ntasks=2 --gpus-per-task=1, whose control group hides the other card.
TEST(MachinesTest, SlurmWithAGpuForEachTask) {
  Machine machine;
  machine.HasCards(2).HasDriver("gpus=1");
  machine.Sets("SLURM_JOB_ID", "7")
      .Sets("SLURM_STEP_ID", "0")
      .Sets("SLURM_STEP_NUM_TASKS", "2")
      .Sets("SLURM_STEP_NODELIST", "localhost")
      .Sets("SLURM_STEP_TASKS_PER_NODE", "2")
      .Sets("SLURM_PROCID", "1")
      .Sets("SLURM_LOCALID", "1")
      .Sets("SLURM_NODEID", "0");
  EXPECT_EQ(machine.Gpus(), "1");
  const TrainerResult run = machine.Train(RunText().Ddp(2).Set("launch", ""));
  EXPECT_NE(run.exit_code, 0);
  // Task 1 takes GPU 0, its own, rather than find that there is no GPU 1.
  EXPECT_THAT(run.err, AnyOf(HasSubstr(kNoDevice), HasSubstr(kNoParts)));
  EXPECT_THAT(run.err, Not(HasSubstr("at most one rank a GPU")));
}

// A command that only looks at a run goes on, and says so.
TEST(MachinesTest, PlansGoOnWithoutGpusThatCannotBeUsed) {
  Machine machine;
  machine.HasCards(1).HasDriver("cuda=12040");
  const TrainerResult check =
      machine.Call({"check", "--config=" + RunText().File()});
  EXPECT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.err, HasSubstr("without GPUs: can't use this machine's"));
}

}  // namespace
}  // namespace capstan
