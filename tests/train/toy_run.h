// SPDX-License-Identifier: Apache-2.0
//
// Whole runs of the toy model on any number of ranks, whose data, evaluation
// losses, samples and memory a test decides on.
#ifndef CAPSTAN_TESTS_TRAIN_TOY_RUN_H_
#define CAPSTAN_TESTS_TRAIN_TOY_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "trainer/session/run_parts.h"

namespace capstan {

// What goes wrong in one forward of a sample: nothing, or a throw before it,
// inside it, or after it.
enum class SampleFault { kNone, kBefore, kInside, kAfter };

struct ToyRun {
  int ranks = 1;
  bool sharded = false;  // under fsdp, whose forward has collectives, not ddp
  int64_t micro_batch = 4;
  int64_t global_batch = 12;
  bool automatic = false;  // micro_batch_size: AUTO has planned micro_batch
  std::string train;       // fields of RunConfig.train, as text
  // Whether target `place` of sample `sample` is trained on; default: all.
  std::function<bool(int64_t sample, int64_t place)> trained;
  // The loss of evaluation number n, 0 first; empty: the model's own.
  std::vector<double> eval_losses;
  // The largest batch that rank r has memory for; default: any.
  std::function<int64_t(int rank)> room;
  // The device of rank r, by which the precision is bfloat16 from 80 on,
  // float32 below; default: float32 anywhere.
  std::function<int(int rank)> compute_capability;
  // The loss is divided by all of a step's targets once more (which only
  // StepInfo::totals can tell), "mean" is what it was before, and each
  // evaluation measures numbers of which every rank has a part.
  bool rich_objective = false;
  // "mean" is told only of batches that have targets.
  bool sparse_metrics = false;
  // Of rank r's forward number f (of 4) in sample number s. Default: there are
  // no samples.
  std::function<SampleFault(int rank, int sample, int forward)> sample_fault;
  // On one rank: FinishForward throws after a failed sample.
  bool end_fails = false;
  // Changes rank r's parts before it trains; default: nothing.
  std::function<void(int rank, RunParts* parts)> change;
  std::string output_dir;  // default: a new one
};

// Runs it in processes of its own; returns the exit code. The
// output of rank 0 goes to OUTPUT_DIR.out.
int RunToy(ToyRun* run);
// Of a run that must go well.
std::string MustTrain(ToyRun run);
// What a run that must fail with exit code 1 says on standard error.
std::string MustFail(ToyRun* run);
// What the run has printed.
std::string Printed(const std::string& output_dir);

}  // namespace capstan

#endif  // CAPSTAN_TESTS_TRAIN_TOY_RUN_H_
