// SPDX-License-Identifier: Apache-2.0
//
// The variable CAPSTAN_STANDIN, read once (testing/standin/README.md).
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_SETTINGS_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_SETTINGS_H_

#include <cstdint>
#include <string>

namespace capstan::standin {

enum class Order { kLate, kEager, kRandom };

struct Settings {
  int gpus = 1;
  std::string gpu = "h100";
  int64_t memory = 0;    // bytes of a device; 0: what the card has
  int64_t occupied = 0;  // of which other processes have so many
  Order order = Order::kLate;
  uint64_t seed = 0;  // of kRandom
  bool paper = false;
  bool host_code = false;  // of ATen's operators; only on paper
  std::string report;      // folders; "": none is written
  std::string trace;
  // The call of this kind ("malloc", "launch") with this number (from 1) fails.
  std::string fault;
  int64_t fault_at = 0;
  // After so long without a call of the host's, works run though nothing waits
  // for them.
  int64_t idle_ns = 3000000;
};

// Ends the process where a setting can't be read.
const Settings& TheSettings();

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_SETTINGS_H_
