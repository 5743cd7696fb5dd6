// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace capstan::fit {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

absl::Status Read(const std::string& text, Machine* machine) {
  return ReadMachineJson("m.json", Json::parse(text), machine);
}

std::string Problem(const std::string& text) {
  Machine machine;
  return std::string(Read(text, &machine).message());
}

TEST(MachineTest, ADescription) {
  Machine machine;
  const absl::Status status = Read(R"({
    "name": "rented", "hosts": 4, "ranks": 8, "gpu": "h100",
    "link": {"gbit": 400, "latency_us": 10}, "price_per_hour": 20.5})",
                                   &machine);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(machine.here);
  EXPECT_EQ(machine.name, "rented");
  EXPECT_EQ(machine.all_ranks(), 32);
  EXPECT_EQ(machine.gpu, "h100");
  EXPECT_EQ(machine.gpu_memory, 80000000000) << "the data sheet's";
  EXPECT_EQ(machine.gbit, 400);
  EXPECT_EQ(machine.price_per_hour, 20.5);
}

TEST(MachineTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(Problem(R"({"host": 2})").substr(0, 30),
            "m.json: host isn't known; ther");
  EXPECT_EQ(Problem(R"({"hosts": 0})"),
            "m.json: hosts must be a whole number of at least 1, is 0");
  EXPECT_EQ(Problem(R"({"ranks": "two"})"),
            "m.json: ranks must be a whole number of at least 1, is \"two\"");
  EXPECT_EQ(Problem(R"({"memory": "64"})"),
            "m.json: memory '64' lacks a unit: write 64GB, 64GiB or, for "
            "bytes, 64B");
  EXPECT_THAT(Problem(R"({"gpu": "h1000"})"),
              HasSubstr("m.json: gpu must be one of a100-40gb"));
  EXPECT_EQ(Problem(R"({"link": {"gbit": -1}})"),
            "m.json: gbit must be a number from 1e-09 to 1e+09, is -1");
  EXPECT_THAT(Problem(R"({"link": {"speed": 1}})"),
              HasSubstr("m.json: link.speed isn't known"));
  EXPECT_THAT(Problem(R"({"link": 10})"), HasSubstr("link must be an object"));
  EXPECT_THAT(Problem(R"({"measured": [{"ranks": 1}]})"),
              HasSubstr("m.json: measured: micro_batch_size"));
  EXPECT_THAT(Problem(R"({"all_reduce": [{"bytes": 1}]})"),
              HasSubstr("as `doctor --json` prints them"));
}

// One that would make a prediction of nothing.
TEST(MachineTest, MeasuredStepsArePossible) {
  const auto problem = [](const std::string& more) {
    return Problem(R"({"measured": [{"ranks": 1, "micro_batch_size": 1,
        "accumulation": 1, "seconds": 1.0)" +
                   more + "}]}");
  };
  EXPECT_EQ(problem(""), "");
  EXPECT_THAT(problem(R"(, "secs": 2)"),
              HasSubstr("m.json: measured.secs isn't known"));
  EXPECT_EQ(problem(R"(, "exposed_seconds": -1)"),
            "m.json: measured.exposed_seconds must be a number from 0 to "
            "1e+15, is -1");
  EXPECT_EQ(problem(R"(, "strategy": 1)"),
            "m.json: measured.strategy must be text, is 1");
  EXPECT_THAT(problem(R"(, "hosts": 0)"), HasSubstr("hosts must be"));
  EXPECT_THAT(problem(R"(, "accumulation": 9223372036854775807)"),
              HasSubstr("accumulation"));
  EXPECT_THAT(problem(R"(, "low": 2)"), HasSubstr("between low and high"));
}

TEST(MachineTest, WhatDoctorWrote) {
  Machine machine;
  const absl::Status status = Read(R"({
    "rank": 0, "findings": [], "hosts": [{"host": "a"}, {"host": "b"}],
    "ranks": 4, "memory": 1073741824, "cores": 2,
    "all_reduce": [{"bytes": 4096, "seconds": 0.001, "wrong": 0,
                    "bus_bytes_per_second": 6144000}]})",
                                   &machine);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(machine.hosts, 2);
  EXPECT_EQ(machine.ranks, 2);
  EXPECT_EQ(machine.memory, 1 << 30);
  ASSERT_EQ(machine.sends.size(), 1);
  EXPECT_EQ(machine.sends[0].sent, 6144);
  EXPECT_EQ(machine.sends[0].seconds, 0.001);
}

TEST(MachineTest, FilesAddUp) {
  Machine machine;
  ASSERT_TRUE(
      Read(R"({"hosts": 2, "ranks": 1, "link": {"gbit": 1}})", &machine).ok());
  ASSERT_TRUE(Read(R"({"price_per_hour": 3})", &machine).ok());
  EXPECT_EQ(machine.hosts, 2);
  EXPECT_EQ(machine.price_per_hour, 3);
}

// What doctor told of the hosts stays, whichever comes first.
TEST(MachineTest, FitsStepsAreAddedToDoctorsHosts) {
  const std::string doctor = R"({
    "hosts": [{"host": "a"}, {"host": "b"}], "ranks": 8, "memory": 1073741824,
    "all_reduce": [{"bytes": 4096, "seconds": 0.001,
                    "bus_bytes_per_second": 6144000}]})";
  const std::string fit = R"({"ways": [], "machine": {
    "name": "this machine", "hosts": 1, "ranks": 2, "memory": 99,
    "tflops": 0.5, "measured": [{"ranks": 4, "micro_batch_size": 1,
                                 "accumulation": 1, "seconds": 1}]}})";
  Machine machine;
  ASSERT_TRUE(Read(doctor, &machine).ok());
  ASSERT_TRUE(Read(fit, &machine).ok());
  EXPECT_EQ(machine.hosts, 2);
  EXPECT_EQ(machine.ranks, 4);
  EXPECT_EQ(machine.memory, 1 << 30);
  EXPECT_EQ(machine.name, "m.json");
  EXPECT_EQ(machine.tflops, 0.5) << "doctor lacks it";
  ASSERT_EQ(machine.measured.size(), 1);
  Machine other;
  ASSERT_TRUE(Read(fit, &other).ok());
  ASSERT_TRUE(Read(doctor, &other).ok());
  EXPECT_EQ(AsJson(other), AsJson(machine));
}

TEST(MachineTest, SlipsAreSaid) {
  EXPECT_THAT(Problem(R"({"name": "a\nlaunch { }"})"),
              HasSubstr("name must be a line of text"));
  EXPECT_THAT(Problem(R"({"ranks": 8, "gpu_memory": "80GiB"})"),
              HasSubstr("gpu_memory needs gpu"));
  EXPECT_THAT(Problem(R"({"tflops": 0})"), HasSubstr("tflops must be"));
  EXPECT_THAT(Problem(R"({"price_per_hour": 1e308})"), HasSubstr("must be"));
  EXPECT_THAT(Problem(R"({"hosts": [{}, {}, {}], "ranks": 8})"),
              HasSubstr("ranks is 8, which 3 hosts can't share equally"));
  Machine machine;
  EXPECT_THAT(std::string(ReadMachine("/dev/zero", &machine).message()),
              HasSubstr("isn't a file"));
  const std::string path = testing::TempDir() + "/many.json";
  std::ofstream(path) << R"({"hosts": 1000000, "ranks": 1000000})";
  EXPECT_THAT(std::string(ReadMachine(path, &machine).message()),
              HasSubstr("at most 100000 ranks in all"));
}

TEST(MachineTest, StepsOfAnotherRunDoNotAddUp) {
  const auto fit = [](const std::string& run) {
    return R"({"machine": {"measured_run": ")" + run +
           R"(", "measured": [{"ranks": 1, "micro_batch_size": 1,
                               "accumulation": 1, "seconds": 1}]}})";
  };
  Machine machine;
  ASSERT_TRUE(Read(fit("a"), &machine).ok());
  EXPECT_TRUE(Read(fit("a"), &machine).ok());
  EXPECT_EQ(machine.measured.size(), 2);
  EXPECT_THAT(std::string(Read(fit("b"), &machine).message()),
              HasSubstr("measured_run is b, and a in a file before"));
}

TEST(MachineTest, DoctorsGpuIsNoCpu) {
  EXPECT_THAT(Problem(R"({"hosts": [{}], "ranks": 1, "gpu": "NVIDIA T1000"})"),
              HasSubstr("m.json: gpu is \"NVIDIA T1000\", of which no data "
                        "sheet is known"));
}

TEST(MachineTest, WhatFitWroteIsReadAsItWas) {
  Machine machine;
  ASSERT_TRUE(Read(R"({"name": "c", "hosts": 2, "ranks": 3, "memory": "8GiB",
    "tflops": 0.5, "link": {"gbit": 10, "latency_us": 30},
    "measured": [{"ranks": 3, "micro_batch_size": 4, "accumulation": 2,
                  "seconds": 0.5, "strategy": "capstan.ddp"}],
    "all_reduce": [{"bytes": 4096, "seconds": 0.001,
                    "bus_bytes_per_second": 6144000}]})",
                   &machine)
                  .ok());
  Machine again;
  const Json json = {{"ways", Json::array()}, {"machine", AsJson(machine)}};
  const absl::Status status = ReadMachineJson("f.json", json, &again);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(AsJson(again), AsJson(machine));
  EXPECT_EQ(again.measured[0].samples, 4);
  EXPECT_EQ(again.sends[0].sent, 6144);
}

TEST(MachineTest, AFileThatIsNone) {
  Machine machine;
  const std::string path = testing::TempDir() + "/m.json";
  std::ofstream(path) << "hosts: 2";
  EXPECT_EQ(ReadMachine(path, &machine).message(),
            path + ": not a JSON object");
  EXPECT_THAT(std::string(ReadMachine(path + "x", &machine).message()),
              HasSubstr(path + "x"));
}

}  // namespace
}  // namespace capstan::fit
