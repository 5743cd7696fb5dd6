// SPDX-License-Identifier: Apache-2.0
//
// The settings that `plan --fit` tries.
#ifndef CAPSTAN_TRAINER_MEMORY_FIT_H_
#define CAPSTAN_TRAINER_MEMORY_FIT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

// What the run leaves to choose.
struct FitLimits {
  int gpus = 1;
  std::vector<int64_t> micro_batches;  // that divide the global batch
  int64_t global_batch = 0;            // which stays as it is
  bool adamw = false;                  // the optimizer is capstan.adamw
  // A frozen base under an adapter, which may be quantised.
  bool quantizable = false;
  // So few parameters are trained that their state doesn't matter.
  bool few_trained = false;
};

struct FitChoice {
  std::string strategy;  // package: "capstan.zero2"
  int64_t micro_batch = 1;
  int64_t global_batch = 0;
  int64_t checkpoint_every = 0;  // 0: none; 1, 2: every n-th unit
  bool recompute_mlp = false;    // gate and up alone
  bool offload_activations = false;
  bool paged_state = false;
  bool quantize = false;
  // Fields of the strategy and the optimizer: "state=EIGHT_BIT".
  std::vector<std::string> strategy_sets;
  std::vector<std::string> optimizer_sets;
  // The estimated time of a step, which has as many samples with each choice,
  // relative to the fastest choice's. Made to order choices; not measured.
  double cost = 1.0;

  // For LoadConfig: those that make plugins of their own.
  std::vector<std::string> Overrides() const;
  // The value of activation_checkpointing, and the line of its n, if any.
  std::string Checkpointing() const;
  // Lines of a config that is merged over the run's.
  std::string ConfigText() const;
};

// All choices, by cost; equal ones in a fixed order.
std::vector<FitChoice> FitChoices(const FitLimits& limits);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_FIT_H_
