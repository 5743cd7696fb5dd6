// SPDX-License-Identifier: Apache-2.0
//
// What a host is like, apart from its GPUs and disks, and what is wrong with
// it.
#ifndef CAPSTAN_DESK_DOCTOR_HOST_H_
#define CAPSTAN_DESK_DOCTOR_HOST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "desk/doctor/finding.h"

namespace capstan::doctor {

// A port of an InfiniBand or RoCE device.
struct FabricPort {
  std::string name;   // "mlx5_0 port 1"
  std::string state;  // "ACTIVE", "DOWN"
  std::string rate;   // "400 Gb/sec (4X NDR)"
};

struct HostFacts {
  int gpus = 0;  // that a run would use
  // Bytes; nullopt: there is no /dev/shm.
  absl::optional<int64_t> shm_size;
  int64_t shm_free = 0;
  // Soft limits; nullopt: none.
  absl::optional<int64_t> open_files;
  absl::optional<int64_t> locked_bytes;
  absl::optional<int64_t> processes;
  int cores = 0;             // that this process may use
  int cores_of_machine = 0;  // that are online
  int cores_by_quota = 0;    // of its control group; 0: no quota
  // Periods in which the control group had CPU time to spare or not, since it
  // began; those in which it had to wait.
  int64_t quota_periods = 0;
  int64_t throttled_periods = 0;
  int64_t memory = 0;             // bytes, as HostMemory
  int64_t available_memory = 0;   // as AvailableHostMemory
  int64_t killed_for_memory = 0;  // processes of the control group
  std::string huge_pages;         // "always", "madvise", "never"; "": unknown
  std::string governor;           // of CPU 0; "": unknown (virtual machines)
  std::string frequency_driver;
  std::string clock_source;  // "tsc"; "": unknown
  bool clock_synchronised = true;
  std::vector<FabricPort> fabric;
  bool has_verbs = false;  // libibverbs opens
};

// Reads them below `root` ("": this machine; for tests a folder with a proc, a
// sys and a dev), limits of this process apart.
HostFacts ReadHost(const std::string& root, int gpus);

// The judgement.
Findings JudgeHost(const HostFacts& facts);

// Since 1970, by CLOCK_REALTIME.
double RealSeconds();

// Time of all cores since the machine's start, in ticks, and the part that the
// hypervisor gave to others; and the two clocks, in seconds.
struct Moment {
  int64_t ticks = 0;
  int64_t stolen_ticks = 0;
  double real_seconds = 0.0;
  double monotonic_seconds = 0.0;
};
Moment ReadMoment(const std::string& root);
// What happened meanwhile: stolen time, and jumps of the clock.
Findings JudgeInterval(const Moment& begin, const Moment& end);

}  // namespace capstan::doctor

#endif  // CAPSTAN_DESK_DOCTOR_HOST_H_
