// SPDX-License-Identifier: Apache-2.0
//
// One process a host: Kubeflow, SkyPilot, dstack, launch { nodes }.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/machine.h"
#include "cluster/launch/place.h"
#include "cluster/launch/place_for_test.h"

namespace capstan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Expects a place whose ranks our launcher forks.
RankInfo NodeIn(const Environment& environment,
                const LaunchSettings& settings = {}, int gpus = 0) {
  const auto place = PlaceIn(environment, settings, gpus);
  EXPECT_TRUE(place.ok()) << place.status();
  if (!place.ok()) return RankInfo();
  EXPECT_TRUE(place->forks);
  EXPECT_TRUE(place->may_train.ok());
  return place->info;
}

LaunchSettings Processes(int processes) {
  LaunchSettings settings;
  settings.processes = processes;
  return settings;
}

TEST(Alone, ByGpusOrTwo) {
  RankInfo info = NodeIn({});
  EXPECT_EQ(info.world_size, 2);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.nodes, 1);
  EXPECT_EQ(PlaceText(info), "");
  EXPECT_EQ(NodeIn({}, {}, 8).world_size, 8);
  EXPECT_EQ(NodeIn({}, Processes(3), 8).world_size, 3);
  // A cluster may set these for everyone.
  EXPECT_EQ(NodeIn({{"MASTER_ADDR", "node0"}}).world_size, 2);
  EXPECT_THAT(ErrorIn({}, Processes(-2)),
              HasSubstr("launch.processes must be AUTO"));
  EXPECT_THAT(ErrorIn({}, Processes(3), 2),
              HasSubstr("launch.processes is 3, but this machine has 2"));
}

// What a rank starts has the rank's variables.
TEST(Alone, InsideARank) {
  const RankInfo info = NodeIn({{"CAPSTAN_INSIDE_RANK", "1"},
                                {"RANK", "1"},
                                {"WORLD_SIZE", "4"},
                                {"SLURM_STEP_NUM_TASKS", "4"}});
  EXPECT_EQ(info.world_size, 2);
  EXPECT_EQ(info.nodes, 1);
}

LaunchSettings Nodes(int nodes, int node_rank, const std::string& rendezvous) {
  LaunchSettings settings;
  settings.nodes = nodes;
  settings.node_rank = node_rank;
  settings.rendezvous = rendezvous;
  return settings;
}

TEST(Settings, Nodes) {
  LaunchSettings settings = Nodes(2, 1, "n1:5000");
  settings.processes = 3;
  settings.interface = "eth1";
  const RankInfo info = NodeIn({}, settings);
  EXPECT_EQ(info.nodes, 2);
  EXPECT_EQ(info.node_rank, 1);
  EXPECT_EQ(info.local_world_size, 3);
  EXPECT_EQ(info.world_size, 6);
  EXPECT_EQ(info.master_addr, "n1");
  EXPECT_EQ(info.master_port, 5000);
  EXPECT_EQ(info.interface, "eth1");
  EXPECT_EQ(info.run_key, "nodes-n1_5000-" + info.run_key.substr(14));
  EXPECT_EQ(info.run_key, NodeIn({}, Nodes(2, 0, "n1:5000")).run_key);
  EXPECT_NE(info.run_key, NodeIn({}, Nodes(2, 0, "n1_5000")).run_key);
  // The same on one host is our launcher's usual work.
  EXPECT_EQ(NodeIn({}, Nodes(1, 0, "")).nodes, 1);
}

TEST(Settings, AddressesOfARendezvous) {
  const auto address = [](const std::string& text) {
    const RankInfo info = NodeIn({}, Nodes(2, 0, text));
    return info.master_addr + " " + std::to_string(info.master_port);
  };
  EXPECT_EQ(address("10.0.0.1:80"), "10.0.0.1 80");
  EXPECT_EQ(address("n1"), "n1 29500");
  EXPECT_EQ(address("[fd00::1]:80"), "fd00::1 80");
  EXPECT_EQ(address("fd00::1"), "fd00::1 29500");
  for (const char* bad : {":80", "n1:", "n1:0", "n1:x", "n1:70000", "[fd00::1",
                          "a b:1", "tcp://n1:5"}) {
    EXPECT_THAT(ErrorIn({}, Nodes(2, 0, bad)),
                HasSubstr("launch.rendezvous must be HOST:PORT"))
        << bad;
  }
}

TEST(Settings, HalfOfThem) {
  LaunchSettings settings;
  settings.nodes = 2;
  EXPECT_THAT(ErrorIn({}, settings),
              AllOf(HasSubstr("launch.node_rank isn't set"),
                    HasSubstr("nodes is 2"), HasSubstr("--node_rank=0")));
  settings.node_rank = 2;
  EXPECT_THAT(ErrorIn({}, settings), HasSubstr("from 0 to 1, is 2"));
  settings.node_rank = 1;
  EXPECT_THAT(
      ErrorIn({}, settings),
      AllOf(HasSubstr("launch.rendezvous isn't set"), HasSubstr("nodes is 2")));
  settings.nodes = 0;
  EXPECT_THAT(ErrorIn({}, settings), AllOf(HasSubstr("launch.node_rank is 1"),
                                           HasSubstr("nodes isn't set")));
  settings.node_rank.reset();
  settings.rendezvous = "n1:5000";
  EXPECT_THAT(ErrorIn({}, settings), HasSubstr("launch.rendezvous is"));
  EXPECT_THAT(ErrorIn({}, Nodes(-1, 0, "")), HasSubstr("launch.nodes must be"));
  EXPECT_THAT(ErrorIn({}, Nodes(1, 1, "")), HasSubstr("must be 0 if nodes is"));
}

// One trainer a host, but there is one for each rank.
TEST(Settings, NodesContradictALauncherOfRanks) {
  const LaunchSettings settings = Nodes(2, 0, "n1:5000");
  struct Case {
    Environment environment;
    const char* named;
  };
  for (const Case& c :
       {Case{{{"RANK", "0"}, {"LOCAL_RANK", "0"}}, "RANK is 0"},
        Case{{{"RANK", "0"}, {"TORCHELASTIC_RUN_ID", "none"}}, "RANK is 0"},
        Case{{{"OMPI_COMM_WORLD_SIZE", "4"},
              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
             "OMPI_COMM_WORLD_SIZE is 4"},
        Case{{{"PMI_SIZE", "4"},
              {"MPI_LOCALRANKID", "0"},
              {"MPI_LOCALNRANKS", "2"}},
             "PMI_SIZE is 4"},
        Case{{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NUM_NODES", "2"}},
             "SLURM_STEP_NUM_TASKS is 4"}}) {
    EXPECT_THAT(ErrorIn(c.environment, settings),
                AllOf(HasSubstr("launch.nodes is 2"), HasSubstr(c.named)));
  }
  // A task a host, or a pod, is what it wants.
  for (const Environment& environment :
       {Environment{{"RANK", "1"}, {"WORLD_SIZE", "2"}},
        Environment{{"PET_NNODES", "4"}, {"PET_NODE_RANK", "3"}},
        Environment{{"OMPI_COMM_WORLD_SIZE", "2"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}},
        Environment{{"SLURM_STEP_NUM_TASKS", "2"},
                    {"SLURM_STEP_NUM_NODES", "2"}}}) {
    const RankInfo info = NodeIn(environment, settings);
    EXPECT_EQ(info.master_addr, "n1");
    EXPECT_EQ(PlaceText(info), "launch.nodes: node 0 of 2, rank 0 of 4");
  }
}

TEST(Gpus, ByTheirIds) {
  LaunchSettings settings;
  settings.gpu_ids = {3, 1};
  auto place = PlaceIn({}, settings, 4);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.local_world_size, 2);
  EXPECT_THAT(place->gpu_ids, ElementsAre(3, 1));
  settings.processes = 1;
  EXPECT_EQ(NodeIn({}, settings, 4).local_world_size, 1);
  settings.processes = 3;
  EXPECT_THAT(ErrorIn({}, settings, 4),
              AllOf(HasSubstr("launch.gpu_ids names 2"), HasSubstr("3 ranks")));
  settings.processes = 0;
  EXPECT_THAT(ErrorIn({}, settings, 3),
              AllOf(HasSubstr("names GPU 3"), HasSubstr("GPUs 0 to 2")));
  EXPECT_THAT(ErrorIn({}, settings, 0), HasSubstr("none that can be used"));
  settings.gpu_ids = {1, 1};
  EXPECT_THAT(ErrorIn({}, settings, 4), HasSubstr("GPU 1 twice"));
  settings.gpu_ids = {-1};
  EXPECT_THAT(ErrorIn({}, settings, 4), HasSubstr("names GPU -1"));
}

TEST(Gpus, ByTheirIdsUnderALauncher) {
  LaunchSettings settings;
  settings.gpu_ids = {3, 1};
  Environment environment = {{"RANK", "3"},         {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},   {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};
  const auto place = PlaceIn(environment, settings, 4);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.GpuIndex(), 1);
  EXPECT_THAT(
      ErrorIn(With(environment, {{"LOCAL_WORLD_SIZE", "4"}}), settings, 4),
      HasSubstr("launch.gpu_ids names 2 for the 4 ranks"));
}

// As Kubeflow's Trainer v2 sets them.
const Environment& TrainerV2() {
  static const auto* const environment =
      new Environment{{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                      {"PET_NNODES", "2"},
                      {"PET_NODE_RANK", "1"},
                      {"PET_NPROC_PER_NODE", "4"},
                      {"PET_MASTER_ADDR", "job-node-0-0.job"},
                      {"PET_MASTER_PORT", "29400"}};
  return *environment;
}

TEST(Kubeflow, TrainerV2) {
  const RankInfo info = NodeIn(TrainerV2());
  EXPECT_EQ(info.node_rank, 1);
  EXPECT_EQ(info.nodes, 2);
  EXPECT_EQ(info.local_world_size, 4);
  EXPECT_EQ(info.world_size, 8);
  EXPECT_EQ(info.master_addr, "job-node-0-0.job");
  EXPECT_EQ(info.master_port, 29400);
  EXPECT_EQ(info.run_key, "kubeflow-29400");
  EXPECT_EQ(PlaceText(info), "Kubeflow Trainer: node 1 of 2, rank 0 of 8");
}

TEST(Kubeflow, RanksOfANode) {
  const auto ranks = [](const std::string& text, int gpus,
                        const LaunchSettings& settings = {}) {
    return NodeIn(With(TrainerV2(), {{"PET_NPROC_PER_NODE", text}}), settings,
                  gpus)
        .local_world_size;
  };
  EXPECT_EQ(ranks("auto", 8), 8);
  EXPECT_EQ(ranks("auto", 0), 2);
  EXPECT_EQ(ranks("gpu", 8), 8);
  EXPECT_EQ(ranks("cpu", 0), AvailableCores());
  EXPECT_EQ(ranks("", 8), 1);  // torchrun's default
  // The user's word.
  EXPECT_EQ(ranks("4", 8, Processes(2)), 2);
  const auto error = [](const std::string& text, int gpus) {
    return ErrorIn(With(TrainerV2(), {{"PET_NPROC_PER_NODE", text}}), {}, gpus);
  };
  EXPECT_THAT(error("gpu", 0), HasSubstr("PET_NPROC_PER_NODE is \"gpu\""));
  EXPECT_THAT(error("many", 0), HasSubstr("a number, auto, gpu or cpu"));
  EXPECT_THAT(error("0", 0), HasSubstr("a number, auto, gpu or cpu"));
  EXPECT_THAT(error("4", 2), HasSubstr("this machine has 2"));
}

// RANK and WORLD_SIZE are the pod's: PET_* win.
TEST(Kubeflow, PyTorchJob) {
  Environment pod = With(TrainerV2(), {{"RANK", "1"},
                                       {"WORLD_SIZE", "2"},
                                       {"PET_NPROC_PER_NODE", ""},
                                       {"MASTER_ADDR", "localhost"},
                                       {"MASTER_PORT", "1"}});
  RankInfo info = NodeIn(pod);
  EXPECT_EQ(info.world_size, 2);
  EXPECT_EQ(info.local_world_size, 1);
  EXPECT_EQ(info.master_addr, "job-node-0-0.job");
  EXPECT_EQ(info.master_port, 29400);
  EXPECT_EQ(PlaceText(info), "PyTorchJob: node 1 of 2, rank 0 of 2");
  pod["PET_NPROC_PER_NODE"] = "auto";
  EXPECT_EQ(NodeIn(pod, {}, 4).world_size, 8);
  // Some versions leave the address to MASTER_*.
  pod = With(pod, {{"PET_MASTER_ADDR", ""},
                   {"PET_MASTER_PORT", ""},
                   {"MASTER_ADDR", "job-master-0"},
                   {"MASTER_PORT", "23456"}});
  info = NodeIn(pod);
  EXPECT_EQ(info.master_addr, "job-master-0");
  EXPECT_EQ(info.master_port, 23456);
}

TEST(Kubeflow, HalfOfIt) {
  const auto without = [](const char* name) {
    return ErrorIn(With(TrainerV2(), {{name, ""}}));
  };
  EXPECT_THAT(without("PET_NNODES"), AllOf(HasSubstr("PET_NNODES is not set"),
                                           HasSubstr("PET_NODE_RANK is 1")));
  EXPECT_THAT(without("PET_NODE_RANK"),
              AllOf(HasSubstr("PET_NODE_RANK is not set"),
                    HasSubstr("PET_NNODES is 2")));
  EXPECT_THAT(without("PET_MASTER_ADDR"), HasSubstr("PET_MASTER_ADDR is not"));
  EXPECT_THAT(without("PET_MASTER_PORT"), HasSubstr("PET_MASTER_PORT is not"));
  EXPECT_THAT(ErrorIn(With(TrainerV2(), {{"PET_NODE_RANK", "2"}})),
              HasSubstr("PET_NODE_RANK must be less than 2"));
  // Elastic.
  EXPECT_THAT(ErrorIn(With(TrainerV2(), {{"PET_NNODES", "1:4"}})),
              AllOf(HasSubstr("PET_NNODES is \"1:4\""), HasSubstr("torchrun")));
  EXPECT_EQ(NodeIn(With(TrainerV2(), {{"PET_NNODES", "2:2"}})).nodes, 2);
  // What the user says makes up for it.
  LaunchSettings settings;
  settings.rendezvous = "n0:5000";
  EXPECT_EQ(NodeIn(With(TrainerV2(), {{"PET_MASTER_ADDR", ""}}), settings)
                .master_addr,
            "n0");
  // One node meets nobody.
  EXPECT_EQ(
      NodeIn({{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "3"}}).world_size, 3);
}

TEST(SkyPilot, ANode) {
  const Environment task = {{"SKYPILOT_NODE_RANK", "1"},
                            {"SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2\n"},
                            {"SKYPILOT_NUM_NODES", "2"},
                            {"SKYPILOT_NUM_GPUS_PER_NODE", "4"},
                            {"SKYPILOT_TASK_ID", "sky-2026-01-01_cluster_1"}};
  const RankInfo info = NodeIn(task, {}, 8);
  EXPECT_EQ(info.nodes, 2);
  EXPECT_EQ(info.node_rank, 1);
  EXPECT_EQ(info.local_world_size, 4);
  EXPECT_EQ(info.master_addr, "10.0.0.1");
  EXPECT_EQ(info.master_port, 29500);
  EXPECT_EQ(info.run_key, "skypilot-sky-2026-01-01_cluster_1-10.0.0.1");
  EXPECT_EQ(PlaceText(info), "SkyPilot: node 1 of 2, rank 0 of 8");
  EXPECT_EQ(NodeIn(task).local_world_size, 2);  // on the CPU
  EXPECT_EQ(NodeIn(With(task, {{"MASTER_PORT", "8008"}})).master_port, 8008);
  EXPECT_THAT(ErrorIn(task, {}, 2),
              HasSubstr("SKYPILOT_NUM_GPUS_PER_NODE is 4"));
  EXPECT_THAT(ErrorIn(With(task, {{"SKYPILOT_NODE_RANK", ""}})),
              AllOf(HasSubstr("SKYPILOT_NODE_RANK is not set"),
                    HasSubstr("SKYPILOT_NODE_IPS is set")));
  EXPECT_THAT(ErrorIn(With(task, {{"SKYPILOT_NODE_IPS", ""}})),
              AllOf(HasSubstr("SKYPILOT_NODE_IPS is not set"),
                    HasSubstr("SKYPILOT_NODE_RANK is 1")));
  EXPECT_THAT(ErrorIn(With(task, {{"SKYPILOT_NUM_NODES", "3"}})),
              AllOf(HasSubstr("SKYPILOT_NUM_NODES is 3"),
                    HasSubstr("SKYPILOT_NODE_IPS lists 2")));
  EXPECT_THAT(ErrorIn(With(task, {{"SKYPILOT_NODE_RANK", "2"}})),
              HasSubstr("must be less than 2"));
  EXPECT_EQ(NodeIn({{"SKYPILOT_NODE_RANK", "0"},
                    {"SKYPILOT_NODE_IPS", "10.0.0.1"},
                    {"SKYPILOT_NUM_NODES", "1"}})
                .world_size,
            2);
}

TEST(Dstack, ANode) {
  const Environment task = {{"DSTACK_NODE_RANK", "1"},
                            {"DSTACK_NODES_NUM", "2"},
                            {"DSTACK_MASTER_NODE_IP", "10.0.0.1"},
                            {"DSTACK_GPUS_PER_NODE", "2"},
                            {"DSTACK_RUN_ID", "abc"}};
  const RankInfo info = NodeIn(task, {}, 2);
  EXPECT_EQ(info.nodes, 2);
  EXPECT_EQ(info.node_rank, 1);
  EXPECT_EQ(info.world_size, 4);
  EXPECT_EQ(info.master_addr, "10.0.0.1");
  EXPECT_EQ(info.master_port, 29500);
  EXPECT_EQ(info.run_key, "dstack-abc-10.0.0.1");
  EXPECT_EQ(PlaceText(info), "dstack: node 1 of 2, rank 0 of 4");
  EXPECT_THAT(ErrorIn(With(task, {{"DSTACK_NODE_RANK", ""}})),
              AllOf(HasSubstr("DSTACK_NODE_RANK is not set"),
                    HasSubstr("DSTACK_NODES_NUM is 2")));
  EXPECT_THAT(ErrorIn(With(task, {{"DSTACK_NODES_NUM", ""}})),
              AllOf(HasSubstr("DSTACK_NODES_NUM is not set"),
                    HasSubstr("DSTACK_NODE_RANK is 1")));
  EXPECT_THAT(ErrorIn(With(task, {{"DSTACK_MASTER_NODE_IP", ""}})),
              HasSubstr("DSTACK_MASTER_NODE_IP is not set"));
  // A task or a development environment of one node.
  EXPECT_EQ(NodeIn({{"DSTACK_NODE_RANK", "0"},
                    {"DSTACK_NODES_NUM", "1"},
                    {"DSTACK_MASTER_NODE_IP", ""},
                    {"DSTACK_GPUS_PER_NODE", "0"}})
                .nodes,
            1);
}

LaunchSettings Changing(int max_processes, const std::string& rendezvous) {
  LaunchSettings settings;
  settings.processes = 2;
  settings.max_processes = max_processes;
  settings.max_restarts = 9;
  settings.rendezvous = rendezvous;
  return settings;
}

TEST(ChangingHosts, TakePart) {
  const absl::StatusOr<Place> place = PlaceIn({}, Changing(9, "n0:5000"));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_TRUE(place->changes);
  EXPECT_EQ(place->first_hosts, 0);
  // As many hosts as fit.
  EXPECT_EQ(place->info.nodes, 4);
  EXPECT_EQ(place->info.world_size, 8);
  EXPECT_EQ(place->info.placed_by, "launch.max_processes");
  EXPECT_EQ(place->info.master_addr, "n0");
  EXPECT_EQ(place->info.master_port, 5000);
  LaunchSettings of_three = Changing(8, "n0:5000");
  of_three.nodes = 3;
  EXPECT_EQ(PlaceIn({}, of_three)->first_hosts, 3);
  EXPECT_FALSE(PlaceIn({}, Processes(2))->changes);
}

TEST(ChangingHosts, WhatCanNotBe) {
  EXPECT_THAT(ErrorIn({}, Changing(-1, "n0:5000")),
              HasSubstr("launch.max_processes must not be negative, is -1"));
  EXPECT_THAT(
      ErrorIn({}, Changing(1, "n0:5000")),
      HasSubstr("launch.max_processes is 1, but this host has 2 ranks"));
  EXPECT_THAT(ErrorIn({}, Changing(8, "")),
              HasSubstr("launch.rendezvous isn't set, but max_processes is"));
  LaunchSettings settings = Changing(8, "n0:5000");
  settings.max_restarts = 0;
  EXPECT_THAT(ErrorIn({}, settings),
              HasSubstr("launch.max_processes has no effect without "
                        "max_restarts"));
  settings = Changing(8, "n0:5000");
  settings.min_processes = 9;
  EXPECT_THAT(ErrorIn({}, settings),
              HasSubstr("launch.max_processes is 8, less than min_processes, "
                        "which is 9"));
  // All hosts of 9 have 8 ranks.
  settings.max_processes = settings.min_processes = 9;
  EXPECT_THAT(ErrorIn({}, settings),
              HasSubstr("launch.min_processes is 9, but the run has only 8"));
  const Environment torchrun = {
      {"TORCHELASTIC_RUN_ID", "1"}, {"RANK", "0"},
      {"WORLD_SIZE", "4"},          {"LOCAL_RANK", "0"},
      {"LOCAL_WORLD_SIZE", "2"},    {"GROUP_RANK", "0"},
      {"MASTER_ADDR", "n0"},        {"MASTER_PORT", "1"}};
  EXPECT_THAT(
      ErrorIn(torchrun, Changing(8, "n0:5000")),
      HasSubstr("launch.max_processes is 8, for one trainer a host, but "
                "RANK is 0"));
  EXPECT_THAT(ErrorIn(torchrun, Changing(8, "")),
              HasSubstr("launch.max_processes is for launchers that start one "
                        "process a host"));
}

}  // namespace
}  // namespace capstan
