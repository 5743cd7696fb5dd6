// SPDX-License-Identifier: Apache-2.0
//
// Who checks what kernels compute on CPUs (train.witness). The core sets them;
// kernels, of which each plugin has its own, ask here.
#ifndef CAPSTAN_KERNELS_CONTEXT_WITNESS_H_
#define CAPSTAN_KERNELS_CONTEXT_WITNESS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/context/word_sums.h"

namespace capstan {

namespace kernels {
struct GemmProblem;
}

class ProductWitness {
 public:
  virtual ~ProductWitness();

  // Calls compute(), which makes the problem's c of its a and b, and checks c;
  // calls it again if c is wrong. On any thread.
  virtual void Compute(const kernels::GemmProblem& problem,
                       const std::function<void()>& compute) = 0;
};

// The current one, or null.
ProductWitness* CurrentProductWitness();
void SetProductWitness(ProductWitness* witness);

// What an update of float32 buffers reads and writes, by block of WordSums.
struct UpdateSums {
  struct Block {
    WordSums::Lanes gradient = {};  // read; of 16-bit gradients nothing
    // Of the parameter and the two moments.
    WordSums::Lanes read[3] = {};
    WordSums written[3];
  };

  const float* parameter = nullptr;  // where the first block's begins
  std::vector<Block> blocks;
  int64_t elements = 0;  // that updates have added
};

// Where the update that runs now is to add its sums, or null. Kernels that
// don't know them add none.
UpdateSums* CurrentUpdateSums();
void SetUpdateSums(UpdateSums* sums);

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_WITNESS_H_
