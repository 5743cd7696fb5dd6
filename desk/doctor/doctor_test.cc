// SPDX-License-Identifier: Apache-2.0
//
// Planted faults, each of which the judgement must name, beside what is well.
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "desk/doctor/all_reduce.h"
#include "desk/doctor/disk.h"
#include "desk/doctor/finding.h"
#include "desk/doctor/gpus.h"
#include "desk/doctor/host.h"
#include "desk/doctor/pipeline.h"
#include "plugins/sdk/idle_for_test.h"

namespace capstan::doctor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr int64_t kGiB = int64_t{1} << 30;

HostFacts Well() {
  HostFacts facts;
  facts.gpus = 8;
  facts.shm_size = 64 * kGiB;
  facts.shm_free = 63 * kGiB;
  facts.open_files = 65536;
  facts.cores = facts.cores_of_machine = 64;
  facts.memory = 512 * kGiB;
  facts.available_memory = 500 * kGiB;
  facts.huge_pages = "madvise";
  facts.governor = "performance";
  facts.clock_source = "tsc";
  facts.fabric = {{"mlx5_0 port 1", "ACTIVE", "400 Gb/sec (4X NDR)"}};
  facts.has_verbs = true;
  return facts;
}

// The findings that aren't ok, as text.
std::string Faults(const Findings& findings) {
  Findings faults;
  for (const Finding& finding : findings) {
    if (finding.level != Level::kOk) faults.push_back(finding);
    EXPECT_EQ(finding.advice.empty(), finding.level == Level::kOk)
        << finding.check;
  }
  return AsText(faults, 1000);
}

TEST(HostTest, NothingIsWrongWithAGoodHost) {
  EXPECT_EQ(Faults(JudgeHost(Well())), "");
}

TEST(HostTest, TinySharedMemoryMattersBetweenGpus) {
  HostFacts facts = Well();
  facts.shm_size = facts.shm_free = int64_t{64} << 20;
  EXPECT_THAT(Faults(JudgeHost(facts)),
              AllOf(HasSubstr("warning  /dev/shm"), HasSubstr("--shm-size")));
  facts.shm_free = 0;
  EXPECT_THAT(Faults(JudgeHost(facts)), HasSubstr("failure  /dev/shm"));
  facts.shm_size.reset();
  EXPECT_THAT(Faults(JudgeHost(facts)), HasSubstr("isn't there"));
  facts.gpus = 1;
  EXPECT_EQ(Faults(JudgeHost(facts)), "");
}

TEST(HostTest, LowLimits) {
  HostFacts facts = Well();
  facts.open_files = 512;
  EXPECT_THAT(Faults(JudgeHost(facts)),
              AllOf(HasSubstr("warning  limits     512 open files"),
                    HasSubstr("ulimit -n 65536")));
  facts.open_files = 64;
  facts.processes = 100;
  facts.locked_bytes = 65536;
  EXPECT_THAT(
      Faults(JudgeHost(facts)),
      AllOf(HasSubstr("failure  limits"), HasSubstr("ulimit -u"),
            HasSubstr("64.0 KiB locked memory"), HasSubstr("ulimit -l")));
}

TEST(HostTest, CoresAndMemory) {
  HostFacts facts = Well();
  facts.cores_by_quota = 4;
  facts.quota_periods = 1000;
  facts.throttled_periods = 400;
  facts.killed_for_memory = 2;
  facts.available_memory = kGiB;
  facts.huge_pages = "never";
  EXPECT_THAT(
      Faults(JudgeHost(facts)),
      AllOf(HasSubstr("warning  cpu"), HasSubstr("4 by quota"),
            HasSubstr("in 40% of its periods"), HasSubstr("2 processes were"),
            HasSubstr("warning  memory"), HasSubstr("warning  huge pages")));
}

TEST(HostTest, GovernorAndClock) {
  HostFacts facts = Well();
  facts.governor = "powersave";
  facts.frequency_driver = "intel_pstate";  // which goes by load
  EXPECT_EQ(Faults(JudgeHost(facts)), "");
  facts.frequency_driver = "acpi-cpufreq";
  facts.clock_source = "hpet";
  EXPECT_THAT(Faults(JudgeHost(facts)),
              AllOf(HasSubstr("cpupower"), HasSubstr("warning  clock")));
}

TEST(HostTest, Fabric) {
  HostFacts facts = Well();
  facts.fabric.push_back({"mlx5_1 port 1", "DOWN", "10 Gb/sec (4X SDR)"});
  EXPECT_THAT(Faults(JudgeHost(facts)), HasSubstr("mlx5_1 port 1 DOWN"));
  facts = Well();
  facts.has_verbs = false;
  EXPECT_THAT(Faults(JudgeHost(facts)), HasSubstr("install libibverbs1"));
}

TEST(HostTest, WhatHappenedMeanwhile) {
  const Moment begin = {10000, 100, 5000.0, 50.0};
  EXPECT_EQ(Faults(JudgeInterval(begin, {11000, 110, 5010.0, 60.0})), "");
  EXPECT_THAT(Faults(JudgeInterval(begin, {11000, 400, 5008.5, 60.0})),
              AllOf(HasSubstr("30% of the cores' time"),
                    HasSubstr("jumped by -1.50 s within 10 s")));
}

TEST(HostTest, ReadsWhatAFolderOfFilesSays) {
  std::string root = testing::TempDir() + "/host_XXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const auto write = [&root](const std::string& path, const char* text) {
    const std::filesystem::path full = root + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  };
  write("proc/self/cgroup", "0::/job\n");
  write("proc/stat", "cpu  10 1 20 900 5 0 4 60 7 0\ncpu0 1 2 3\n");
  write("sys/fs/cgroup/job/cpu.stat",
        "usage_usec 9\nnr_periods 50\n"
        "nr_throttled 5\n");
  write("sys/fs/cgroup/job/memory.events", "low 0\noom 3\noom_kill 3\n");
  write("sys/kernel/mm/transparent_hugepage/enabled",
        "always madvise [never]\n");
  write("sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN\n");
  write("sys/class/infiniband/mlx5_2/ports/1/rate", "100 Gb/sec (4X EDR)\n");
  const HostFacts facts = ReadHost(root, 0);
  EXPECT_FALSE(facts.shm_size.has_value());
  EXPECT_EQ(facts.quota_periods, 50);
  EXPECT_EQ(facts.throttled_periods, 5);
  EXPECT_EQ(facts.killed_for_memory, 3);
  EXPECT_EQ(facts.huge_pages, "never");
  ASSERT_EQ(facts.fabric.size(), 1u);
  EXPECT_EQ(facts.fabric[0].name, "mlx5_2 port 1");
  EXPECT_EQ(facts.fabric[0].state, "DOWN");
  EXPECT_EQ(facts.fabric[0].rate, "100 Gb/sec (4X EDR)");
  const Moment moment = ReadMoment(root);
  EXPECT_EQ(moment.ticks, 1000);
  EXPECT_EQ(moment.stolen_ticks, 60);
  std::filesystem::remove_all(root);
}

TEST(DiskTest, MeasuresAndLeavesNothing) {
  std::string folder = testing::TempDir() + "/disk_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const DiskFacts facts = MeasureDisk(folder + "/not/there/yet");
  EXPECT_TRUE(facts.status.ok()) << facts.status;
  EXPECT_EQ(facts.folder, folder);
  EXPECT_GT(facts.bytes_per_second, 0);
  EXPECT_GT(facts.latency, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  // No file can be made there.
  EXPECT_THAT(Faults({JudgeDisk(MeasureDisk("/proc/self"))}),
              HasSubstr("failure  disk       /proc/self"));
  std::filesystem::remove_all(folder);
}

TEST(DiskTest, AFullDisk) {
  std::string folder = testing::TempDir() + "/full_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  // Seen by this test alone.
  if (unshare(CLONE_NEWNS) != 0 ||
      mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("none", folder.c_str(), "tmpfs", 0, "size=2m") != 0) {
    GTEST_SKIP() << "may not mount";
  }
  EXPECT_THAT(Faults({JudgeDisk(MeasureDisk(folder))}),
              AllOf(HasSubstr("failure  disk"), HasSubstr("No space left"),
                    HasSubstr("make room")));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(DiskTest, SlowOrAlmostFull) {
  DiskFacts facts;
  facts.folder = "/data";
  facts.free_bytes = 100 * kGiB;
  facts.bytes_per_second = 1e9;
  facts.latency = 0.002;
  EXPECT_EQ(Faults({JudgeDisk(facts)}), "");
  facts.latency = 0.4;
  EXPECT_THAT(Faults({JudgeDisk(facts)}), HasSubstr("save less often"));
  facts.bytes_per_second = 1e7;
  EXPECT_THAT(Faults({JudgeDisk(facts)}), HasSubstr("a faster disk"));
  facts.free_bytes = kGiB;
  EXPECT_THAT(Faults({JudgeDisk(facts)}), HasSubstr("remove old runs"));
}

Json WellGpu() {
  return {{"index", 3},
          {"name", "NVIDIA H100"},
          {"memory_bytes", 80 * kGiB},
          {"free_bytes", 79 * kGiB},
          {"slowed", Json::array()},
          {"uncorrected_errors", 0},
          {"persistent", true},
          {"pcie_width", 16},
          {"pcie_width_max", 16},
          {"nvlinks", 18},
          {"nvlinks_active", 18},
          {"no_peer", Json::array()}};
}

TEST(GpusTest, EachFaultIsNamed) {
  EXPECT_EQ(Faults(JudgeGpus(Json::array({WellGpu()}))), "");
  const std::vector<std::pair<Json, std::string>> faults = {
      {{{"uncorrected_errors", 2}}, "failure  gpu 3      NVIDIA H100: 2 unc"},
      {{{"rows_failed", true}}, "failure  gpu 3      NVIDIA H100: damaged"},
      {{{"rows_pending", true}}, "waits for its replacement"},
      {{{"name", ""}}, "failure  gpu 3      unnamed: doesn't answer"},
      {{{"free_bytes", 10 * kGiB}}, "70.0 GiB are in use"},
      {{{"slowed", {"HW slowdown"}}}, "by HW slowdown"},
      {{{"persistent", false}}, "nvidia-smi -pm 1"},
      {{{"pcie_width", 4}}, "4 of 16 lanes"},
      {{{"nvlinks_active", 17}}, "17 of 18 NVLinks"},
      {{{"no_peer", {1, 2}}}, "the memory of GPU 1, 2"}};
  for (const auto& [change, text] : faults) {
    Json gpu = WellGpu();
    gpu.update(change);
    EXPECT_THAT(Faults(JudgeGpus(Json::array({gpu}))), HasSubstr(text));
  }
  // Another job's GPU.
  Json other = WellGpu();
  other.update({{"uncorrected_errors", 2}, {"visible", false}});
  EXPECT_EQ(Faults(JudgeGpus(Json::array({other}))), "");
  EXPECT_THAT(AsText(JudgeGpus(Json::array({other})), 1000),
              AllOf(HasSubstr("2 uncorrected"), HasSubstr("not for runs")));
  // What a card doesn't tell is no fault.
  EXPECT_EQ(Faults(JudgeGpus(Json::array({{{"index", 0}, {"name", "Orin"}}}))),
            "");
  EXPECT_EQ(Faults(JudgeGpus(Json::array({{{"index", 0},
                                           {"name", "GeForce"},
                                           {"memory_bytes", kGiB},
                                           {"free_bytes", kGiB}}}))),
            "");
}

// Rank 0 of two, whose other computes the same as it; the sum may be wrong in
// one number.
class TwoRanks : public IdleGroup {
 public:
  explicit TwoRanks(bool wrong) : IdleGroup(0, 2), wrong_(wrong) {}

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    tensor.mul_(3);  // weights 1 and 2
    if (wrong_) tensor[tensor.numel() / 2].add_(1);
    return std::make_unique<IdleWork>();
  }

 private:
  const bool wrong_;
};

TEST(AllReduceTest, AWrongSumIsAFailure) {
  TwoRanks right(false);
  std::vector<Transfer> transfers = MeasureAllReduce(&right);
  EXPECT_EQ(transfers.front().bytes, 4096);
  const Finding finding = JudgeAllReduce(transfers, 2, 1, "shm");
  EXPECT_THAT(finding.text, AllOf(HasSubstr("2 ranks on 1 host, shm: right"),
                                  Not(HasSubstr("wrong"))));

  TwoRanks wrong(true);
  transfers = MeasureAllReduce(&wrong);
  EXPECT_EQ(transfers.front().wrong, 1);
  EXPECT_THAT(Faults({JudgeAllReduce(transfers, 2, 1, "shm")}),
              HasSubstr("wrong in 1 of 2048 numbers of 4.00 KiB"));
}

TEST(AllReduceTest, SlowLinksAreWarnedOf) {
  const std::vector<Transfer> slow = {{1 << 26, 0.9, 0, 7e7}};
  EXPECT_THAT(
      Faults({JudgeAllReduce(slow, 4, 2, "shm+gloo")}),
      AllOf(HasSubstr("warning  all-reduce"), HasSubstr("launch.interface")));
  const std::vector<Transfer> pcie = {{1 << 28, 0.1, 0, 4e9}};
  EXPECT_THAT(Faults({JudgeAllReduce(pcie, 8, 1, "nccl")}),
              HasSubstr("topo -m"));
  EXPECT_EQ(Faults({JudgeAllReduce(pcie, 2, 1, "shm")}), "");
}

TEST(AllReduceTest, TheTableFits80Columns) {
  const std::string table = TransferTable(
      {{4096, 1e-5, 0, 4e8}, {65536, 1e-5, 0, 6e9}, {1 << 26, 1e-2, 0, 3e9}});
  size_t begin = 0;
  for (size_t end; (end = table.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    EXPECT_LE(end - begin, 80u);
  }
  EXPECT_THAT(table, AllOf(HasSubstr(" 6.000  ########################"),
                           HasSubstr(" 3.000  ####################\n")));
}

TEST(AllReduceTest, ClocksOfHosts) {
  EXPECT_EQ(Faults({JudgeSkew({0, 0.001, -0.02})}), "");
  EXPECT_THAT(Faults({JudgeSkew({0, 0.001, -75})}),
              HasSubstr("rank 2's clock is 1:15 behind"));
}

TEST(PipelineTest, ReadersMustKeepUp) {
  PipelineFacts facts;
  facts.read_per_second = 1000;
  facts.needed_per_second = 100;
  facts.tokens = 512;
  EXPECT_EQ(Faults({JudgePipeline(facts)}), "");
  facts.needed_per_second = 700;
  EXPECT_THAT(Faults({JudgePipeline(facts)}), HasSubstr("warning  data"));
  facts.needed_per_second = 2000;
  EXPECT_THAT(Faults({JudgePipeline(facts)}),
              AllOf(HasSubstr("warning  data"), HasSubstr("512 k tokens/s"),
                    HasSubstr("steps wait for data")));
}

TEST(FindingTest, LinesAreWrappedAndComeBackFromJson) {
  const Findings findings = {{Level::kWarning, "limits",
                              "a few words that take more than a line",
                              "do it"}};
  EXPECT_EQ(AsText(findings, 40),
            "warning  limits     a few words that\n"
            "                    take more than a\n"
            "                    line\n"
            "                    do it\n");
  EXPECT_EQ(AsText(FindingsOf(AsJson(findings)), 80), AsText(findings, 80));
}

}  // namespace
}  // namespace capstan::doctor
