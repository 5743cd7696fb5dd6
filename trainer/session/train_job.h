// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_TRAIN_JOB_H_
#define CAPSTAN_TRAINER_SESSION_TRAIN_JOB_H_

#include <string>
#include <vector>

#include "trainer/config/load_config.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// A run that is ready to start; the same in all ranks.
struct TrainJob {
  LoadedConfig loaded;
  RunParts parts;
  BatchPlan batch;
  // Samples of an evaluation's forward; 0: as in training. A resumed run that
  // trains in smaller micro-batches than before still evaluates the same ones.
  int64_t evaluation_batch = 0;
  MemoryPlan memory;
  // Of the run; empty under torchrun, where rank 0 settles it.
  std::string output_dir;
  std::string workspace_folder;
  // The words that started the run (CommandWords); empty: not known.
  std::vector<std::string> command;
  int gpus = 0;                    // of this machine; 0: CPU
  std::vector<std::string> notes;  // for the user, under the banner
  // When the run's first process was executed, on CLOCK_BOOTTIME.
  double start_seconds = 0.0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_TRAIN_JOB_H_
