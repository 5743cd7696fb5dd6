// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace capstan {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A machine of `nodes` NUMA nodes with `cores` cores each, of `threads`
// hyperthreads, and `gpus` GPUs a node, written as hwloc writes it. Processors
// are numbered as Linux does: one of each core, then the second of each. At
// most 32 processors.
class MachineXml {
 public:
  MachineXml(int nodes, int cores, int threads, int gpus)
      : nodes_(nodes), cores_(cores), threads_(threads), gpus_(gpus) {}

  // Processors of a container's or job's cpuset; default: all.
  MachineXml& Allow(uint32_t cpus) {
    allowed_ = cpus;
    return *this;
  }

  Topology Load() const {
    std::string text = absl::StrCat(
        R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
)",
        "<object type=\"Machine\" os_index=\"0\" ",
        Sets(All(), (1u << nodes_) - 1),
        absl::StrFormat(" allowed_cpuset=\"0x%08x\" allowed_nodeset=\"0x%08x\"",
                        allowed_ == 0 ? All() : allowed_, (1u << nodes_) - 1),
        Id(), ">\n");
    for (int node = 0; node < nodes_; ++node) {
      absl::StrAppend(&text, Package(node));
    }
    absl::StrAppend(&text, "</object>\n</topology>\n");
    const std::string path =
        absl::StrCat(testing::TempDir(), "/machine.", getpid(), ".xml");
    std::ofstream(path) << text;
    setenv("HWLOC_XMLFILE", path.c_str(), /*replace=*/1);
    Topology topology = TopologyOfMachine(/*devices=*/true);
    unsetenv("HWLOC_XMLFILE");
    EXPECT_NE(topology, nullptr) << text;
    return topology;
  }

  // The n-th GPU of a node.
  static std::string BusId(int node, int gpu) {
    return absl::StrFormat("0000:%02X:00.0", 0x10 * (node + 1) + gpu);
  }

 private:
  uint32_t CpusOfCore(int core) const {
    uint32_t cpus = 0;
    for (int t = 0; t < threads_; ++t) {
      cpus |= 1u << (t * nodes_ * cores_ + core);
    }
    return cpus;
  }
  uint32_t CpusOfNode(int node) const {
    uint32_t cpus = 0;
    for (int i = 0; i < cores_; ++i) cpus |= CpusOfCore(node * cores_ + i);
    return cpus;
  }
  uint32_t All() const {
    uint32_t cpus = 0;
    for (int node = 0; node < nodes_; ++node) cpus |= CpusOfNode(node);
    return cpus;
  }
  static std::string Sets(uint32_t cpus, uint32_t nodes) {
    return absl::StrFormat(
        "cpuset=\"0x%08x\" complete_cpuset=\"0x%08x\" nodeset=\"0x%08x\" "
        "complete_nodeset=\"0x%08x\"",
        cpus, cpus, nodes, nodes);
  }
  std::string Id() const {
    return absl::StrCat(" gp_index=\"", ++last_id_, "\"");
  }

  std::string Object(const std::string& type, int index, uint32_t cpus,
                     int node) const {
    return absl::StrCat("<object type=\"", type, "\" os_index=\"", index, "\" ",
                        Sets(cpus, 1u << node), Id());
  }

  std::string Package(int node) const {
    const uint32_t cpus = CpusOfNode(node);
    std::string text =
        absl::StrCat(Object("Package", node, cpus, node), ">\n",
                     Object("NUMANode", node, cpus, node), "/>\n");
    for (int i = 0; i < cores_; ++i) {
      const int core = node * cores_ + i;
      absl::StrAppend(&text, Object("Core", core, CpusOfCore(core), node),
                      ">\n");
      for (int t = 0; t < threads_; ++t) {
        const int cpu = t * nodes_ * cores_ + core;
        absl::StrAppend(&text, Object("PU", cpu, 1u << cpu, node), "/>\n");
      }
      absl::StrAppend(&text, "</object>\n");
    }
    for (int gpu = 0; gpu < gpus_; ++gpu) {
      // A 3D controller of NVIDIA's.
      const int bus = 0x10 * (node + 1) + gpu;
      absl::StrAppend(
          &text, "<object type=\"PCIDev\" os_index=\"", bus << 12, "\"", Id(),
          absl::StrFormat(" pci_busid=\"0000:%02x:00.0\" "
                          "pci_type=\"0302 [10de:2335] [10de:18be] a1\" "
                          "pci_link_speed=\"31.5\"/>\n",
                          bus));
    }
    return absl::StrCat(text, "</object>\n");
  }

  const int nodes_;
  const int cores_;
  const int threads_;
  const int gpus_;
  uint32_t allowed_ = 0;
  mutable int last_id_ = 0;
};

std::set<int> From(int begin, int end) {
  std::set<int> numbers;
  for (int i = begin; i < end; ++i) numbers.insert(i);
  return numbers;
}

CoreRequest RequestOf(const std::set<int>& mask, int rank, int ranks) {
  CoreRequest request;
  request.mask = mask;
  request.local_rank = rank;
  request.local_world_size = ranks;
  return request;
}

std::vector<std::string> TextsOf(hwloc_topology& machine,
                                 const std::set<int>& mask, int ranks) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < ranks; ++rank) {
    texts.push_back(ChooseCores(machine, RequestOf(mask, rank, ranks)).text);
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST(CoresTest, DividesTheCoresNearAGpuByTheGpusThere) {
  const auto machine = MachineXml(2, 16, 1, 4).Load();
  Texts texts;
  for (int node = 0; node < 2; ++node) {
    for (int gpu = 0; gpu < 4; ++gpu) {
      // Alone in its run: another may have the other GPUs.
      CoreRequest request = RequestOf(From(0, 32), 0, 1);
      request.gpu_bus_id = MachineXml::BusId(node, gpu);
      const RankCores cores = ChooseCores(*machine, request);
      EXPECT_EQ(cores.cores, 4);
      texts.push_back(cores.text);
    }
  }
  EXPECT_EQ(texts, (Texts{"0-3 (NUMA 0)", "4-7 (NUMA 0)", "8-11 (NUMA 0)",
                          "12-15 (NUMA 0)", "16-19 (NUMA 1)", "20-23 (NUMA 1)",
                          "24-27 (NUMA 1)", "28-31 (NUMA 1)"}));
}

TEST(CoresTest, GpusWithFewCoresShareTheNode) {
  const auto machine = MachineXml(2, 8, 2, 4).Load();
  CoreRequest request = RequestOf(From(0, 32), 1, 8);
  request.gpu_bus_id = MachineXml::BusId(1, 2);
  const RankCores cores = ChooseCores(*machine, request);
  EXPECT_EQ(cores.text, "8-15,24-31 (NUMA 1)");
  EXPECT_EQ(cores.cores, 0) << "shared";
}

TEST(CoresTest, APartOfTheMachineIsNotDividedByItsGpus) {
  const auto machine = MachineXml(2, 16, 1, 4).Load();
  CoreRequest request = RequestOf(From(10, 24), 0, 2);
  request.gpu_bus_id = MachineXml::BusId(0, 3);
  EXPECT_EQ(ChooseCores(*machine, request).text, "10-15 (NUMA 0)");
  // The mask has nothing near the GPU, or nothing else.
  request.mask = From(20, 24);
  EXPECT_THAT(ChooseCores(*machine, request).cpus, IsEmpty());
  request.mask = From(0, 8);
  EXPECT_THAT(ChooseCores(*machine, request).cpus, IsEmpty());
}

TEST(CoresTest, AGpuOfAnotherMachineBindsNothing) {
  const auto machine = MachineXml(2, 16, 1, 1).Load();
  CoreRequest request = RequestOf(From(0, 32), 0, 1);
  request.gpu_bus_id = "0000:77:00.0";
  EXPECT_THAT(ChooseCores(*machine, request).cpus, IsEmpty());
}

TEST(CoresTest, OneNodeIsLeftToTheSystem) {
  const auto machine = MachineXml(1, 16, 1, 2).Load();
  EXPECT_THAT(ChooseCores(*machine, RequestOf(From(0, 16), 0, 2)).cpus,
              IsEmpty());
  CoreRequest request = RequestOf(From(0, 16), 0, 2);
  request.gpu_bus_id = MachineXml::BusId(0, 1);
  EXPECT_THAT(ChooseCores(*machine, request).cpus, IsEmpty());
}

TEST(CoresTest, SharesWithoutGpusAreInsideANode) {
  const auto machine = MachineXml(2, 8, 1, 0).Load();
  EXPECT_EQ(TextsOf(*machine, From(0, 16), 4),
            (Texts{"0-3 (NUMA 0)", "4-7 (NUMA 0)", "8-11 (NUMA 1)",
                   "12-15 (NUMA 1)"}));
  // 6, 5 and 5: two fit, the third has what they leave.
  EXPECT_EQ(TextsOf(*machine, From(0, 16), 3),
            (Texts{"0-5 (NUMA 0)", "8-12 (NUMA 1)", "6-7,13-15 (NUMA 0-1)"}));
}

TEST(CoresTest, OneRankHasAllAndIsNotBound) {
  const auto machine = MachineXml(2, 8, 1, 0).Load();
  EXPECT_EQ(TextsOf(*machine, From(0, 16), 1), (Texts{""}));
}

TEST(CoresTest, HyperthreadsOfACoreStayTogetherAndCountOnce) {
  const auto machine = MachineXml(2, 8, 2, 0).Load();
  std::set<int> all;
  for (int rank = 0; rank < 4; ++rank) {
    const RankCores cores =
        ChooseCores(*machine, RequestOf(From(0, 32), rank, 4));
    EXPECT_EQ(cores.cores, 4);
    for (const int cpu : cores.cpus) {
      EXPECT_TRUE(all.insert(cpu).second) << cpu;
      EXPECT_THAT(cores.cpus, Contains((cpu + 16) % 32));
    }
  }
  EXPECT_THAT(all, SizeIs(32));
}

TEST(CoresTest, SmallSharesAreTheWholeNode) {
  const auto machine = MachineXml(2, 4, 1, 0).Load();
  EXPECT_EQ(
      TextsOf(*machine, From(0, 8), 4),
      (Texts{"0-3 (NUMA 0)", "0-3 (NUMA 0)", "4-7 (NUMA 1)", "4-7 (NUMA 1)"}));
  EXPECT_EQ(ChooseCores(*machine, RequestOf(From(0, 8), 0, 4)).cores, 0);
  EXPECT_EQ(TextsOf(*machine, From(0, 8), 8), Texts(8, ""))
      << "as many ranks as cores";
}

TEST(CoresTest, ACpusetOfThreeCores) {
  // Of nodes 0 and 1, as cores 6, 7 and 8.
  const auto machine = MachineXml(2, 8, 1, 0).Allow(0x1c0).Load();
  EXPECT_EQ(TextsOf(*machine, From(6, 9), 2),
            (Texts{"6-7 (NUMA 0)", "8 (NUMA 1)"}));
  EXPECT_EQ(TextsOf(*machine, From(6, 9), 3), Texts(3, ""));
}

TEST(CoresTest, WhatALauncherHasBoundStays) {
  const auto machine = MachineXml(2, 8, 2, 1).Load();
  // srun --cpu-bind=cores: both hyperthreads of four cores.
  CoreRequest request =
      RequestOf({4, 5, 6, 7, 20, 21, 22, 23}, /*rank=*/1, /*ranks=*/4);
  request.own_process = true;
  const RankCores cores = ChooseCores(*machine, request);
  EXPECT_THAT(cores.cpus, IsEmpty());
  EXPECT_EQ(cores.cores, 4);
  request.gpu_bus_id = MachineXml::BusId(1, 0);
  EXPECT_THAT(ChooseCores(*machine, request).cpus, IsEmpty());
  // taskset around our launcher is for all of its ranks.
  request.own_process = false;
  request.gpu_bus_id = "";
  request.mask = {0, 1, 2, 3, 8, 9, 10, 11};
  request.local_world_size = 2;
  EXPECT_EQ(ChooseCores(*machine, request).text, "8-11 (NUMA 1)");
}

TEST(CoresTest, AJobsCpusetIsNobodysMask) {
  // The whole of what the job may use, so that no rank is bound yet.
  const auto machine = MachineXml(2, 8, 1, 0).Allow(0x0f0f).Load();
  CoreRequest request = RequestOf({0, 1, 2, 3, 8, 9, 10, 11}, 1, 2);
  request.own_process = true;
  EXPECT_EQ(ChooseCores(*machine, request).text, "8-11 (NUMA 1)");
}

TEST(CoresTest, ReadsThisMachine) {
  const auto machine = TopologyOfMachine(/*devices=*/true);
  ASSERT_NE(machine, nullptr);
  EXPECT_EQ(getenv("HWLOC_PLUGINS_PATH"), nullptr);
}

// Runs `body` in a child, as it changes the process.
void InChild(const std::function<void()>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

cpu_set_t Affinity() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return set;
}

TEST(CoresTest, BindsThisProcessOrLeavesIt) {
  const cpu_set_t before = Affinity();
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one processor";
  std::set<int> cpus;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &before)) cpus.insert(i);
  }
  // As srun binds it: it stays, and OpenMP gets as many threads.
  InChild([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(*cpus.begin(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    RankInfo info;
    info.own_process = true;
    info.local_world_size = 2;
    info.threads = 2;
    unsetenv("OMP_NUM_THREADS");
    const RankInfo bound = BindToCores(info, /*gpus=*/0);
    EXPECT_EQ(bound.cores, "");
    EXPECT_EQ(bound.threads, 1);
    const cpu_set_t after = Affinity();
    EXPECT_TRUE(CPU_EQUAL(&after, &one));
    // The user's word.
    setenv("OMP_NUM_THREADS", "2", 1);
    EXPECT_EQ(BindToCores(info, /*gpus=*/0).threads, 2);
  });
  // A rank of our launcher: what the topology says is what the process gets.
  InChild([&] {
    RankInfo info;
    info.local_world_size = 2;
    info.threads = 2;
    const RankInfo bound = BindToCores(info, /*gpus=*/0);
    const RankCores chosen = ChooseCores(*TopologyOfMachine(/*devices=*/false),
                                         RequestOf(cpus, 0, 2));
    EXPECT_EQ(bound.cores, chosen.text);
    const cpu_set_t after = Affinity();
    EXPECT_EQ(CPU_COUNT(&after),
              static_cast<int>(chosen.cpus.empty() ? cpus.size()
                                                   : chosen.cpus.size()));
  });
}

}  // namespace
}  // namespace capstan
