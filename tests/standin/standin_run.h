// SPDX-License-Identifier: Apache-2.0
//
// Short runs of the trainer on stand-in CUDA devices.
#ifndef CAPSTAN_TESTS_STANDIN_STANDIN_RUN_H_
#define CAPSTAN_TESTS_STANDIN_STANDIN_RUN_H_

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/run_folder.h"
#include "tests/testing/trainer_process.h"

namespace capstan {

struct StandinRun {
  TrainerResult result;
  std::string folder;  // its output_dir
  Metrics metrics;     // empty if the run wrote none
  // Lines of all ranks' reports (testing/standin/README.md), and those of them
  // that are findings.
  std::vector<nlohmann::json> report, findings;
};

// Fields for one of configs/ that make its model three narrow blocks and its
// rows short: more of what it computes would cost much and show nothing else.
// Nothing for other configs.
std::vector<std::string> Small(const std::string& config);

// A config.json of this folder with blocks as narrow.
std::string SmallModel(const std::string& name);

// Two optimizer steps of a small configs/run_distributed.pbtxt, eight rows
// each, without evaluations and samples, with more arguments.
std::vector<std::string> ShortRun(int ranks,
                                  const std::vector<std::string>& more = {});

// Arguments for configs/ad_darkroom_quickstart.pbtxt: few and short histories,
// collected in the test's own folder, and the shortest evaluation.
std::vector<std::string> FewHistories();

// Trains, or runs the command that `args` begin with, on `gpus` devices, with
// more settings of CAPSTAN_STANDIN ("fault=malloc:3"); 0: on the CPU.
// `output_dir`: another run's, to go on with; else a new one. `environment`:
// variables besides.
StandinRun RunOn(int gpus, const std::vector<std::string>& args,
                 const std::string& settings = "",
                 const std::string& output_dir = "",
                 const std::map<std::string, std::string>& environment = {});

}  // namespace capstan

#endif  // CAPSTAN_TESTS_STANDIN_STANDIN_RUN_H_
