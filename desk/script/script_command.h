// SPDX-License-Identifier: Apache-2.0
//
// The files that clusters' launchers take: `script` prints them, `init` writes
// them.
#ifndef CAPSTAN_DESK_SCRIPT_SCRIPT_COMMAND_H_
#define CAPSTAN_DESK_SCRIPT_SCRIPT_COMMAND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/commands/command.h"

namespace capstan {

struct ScriptOptions {
  std::string launcher;  // "slurm", "pbs", ..
  RunOptions run;
  int64_t nodes = 2;
  int64_t processes = 0;  // ranks of a node; 0: the config's, else 2
  bool gpus = false;      // a rank asks for one
  // Of Kubernetes.
  std::string image = "capstan:latest";
  std::string shared;  // this machine's folder that pods see as /shared
  std::vector<std::string> requests;       // "cpu=16"
  std::vector<std::string> node_selector;  // "zone=a"
  std::string rdma;                        // "rdma/hca=1"
};

// The file for options.launcher that runs `trainer` with options.run; with
// options.run.print_config the config instead. Errors: an unknown launcher, no
// config, a config that can't be loaded or run so.
absl::StatusOr<std::string> ScriptText(const ScriptOptions& options);

}  // namespace capstan

#endif  // CAPSTAN_DESK_SCRIPT_SCRIPT_COMMAND_H_
