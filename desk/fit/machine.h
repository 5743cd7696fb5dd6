// SPDX-License-Identifier: Apache-2.0
//
// The machine or cluster that a run is to be fitted to.
#ifndef CAPSTAN_DESK_FIT_MACHINE_H_
#define CAPSTAN_DESK_FIT_MACHINE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan::fit {

// How long collectives take between all ranks: those that send `sent` bytes
// from each rank take `seconds`.
struct SendTime {
  double sent = 0.0;
  double seconds = 0.0;
};

// Steps of the run that were taken with some settings.
struct Measured {
  int hosts = 1;
  int ranks = 1;         // of each host
  std::string gpu;       // a key of GpuSpecs; "": on CPUs
  std::string strategy;  // and what it sets: "capstan.fsdp reshard..=false"
  std::string checkpointing;  // "NONE", "MLP", ..
  int64_t samples = 1;        // of a micro-batch
  int64_t accumulation = 1;
  double seconds =
      0.0;  // of a step: the lower quartile; nine tenths are between
  double low = 0.0;
  double high = 0.0;
  // In a step, of one rank: what it waited for collectives, how many they were,
  // bytes sent, and elements updated.
  double exposed = 0.0;
  double collectives = 0.0;
  double sent = 0.0;
  double updated = 0.0;
  // Cores that other programs kept busy meanwhile.
  double others = 0.0;
  // The largest process of a rank, in bytes, and what was planned for it.
  int64_t process = 0;
  int64_t planned = 0;
};

// Whether steps were taken with the same settings.
bool SameSettings(const Measured& a, const Measured& b);

struct Machine {
  std::string name = "this machine";
  // Whether it is the machine at hand, on which runs can be tried.
  bool here = true;
  int hosts = 1;
  int ranks = 0;       // of each host; 0: what the config says
  int64_t memory = 0;  // of a host, in bytes, for the run
  std::string gpu;     // a key of GpuSpecs; "": ranks compute on CPUs
  int64_t gpu_memory = 0;
  // What a rank's products reach; 0: of a GPU a part of its data sheet's peak,
  // of a CPU what is measured here.
  double tflops = 0.0;
  // Between hosts: the link of each, in one direction; 0: unknown.
  double gbit = 0.0;
  double latency_us = 0.0;
  // The same, measured between all ranks.
  std::vector<SendTime> sends;
  double price_per_hour = 0.0;  // of a host
  std::vector<Measured> measured;
  std::string measured_run;  // whose steps they are; "": not said

  int all_ranks() const { return hosts * ranks; }
};

// Changes `machine` by what the file at `path` says of it: a description
// (docs/fit.md), what `doctor --json` has printed, or what `fit --json` has, of
// which only steps are taken and what no file before it told. Errors name the
// file and the key.
absl::Status ReadMachine(const std::string& path, Machine* machine);
absl::Status ReadMachineJson(const std::string& path,
                             const nlohmann::ordered_json& json,
                             Machine* machine);

nlohmann::ordered_json AsJson(const Machine& machine);
nlohmann::ordered_json AsJson(const Measured& measured);

// Reads a list of AsJson(Measured).
absl::StatusOr<std::vector<Measured>> MeasuredOf(
    const std::string& path, const nlohmann::ordered_json& json);

}  // namespace capstan::fit

#endif  // CAPSTAN_DESK_FIT_MACHINE_H_
