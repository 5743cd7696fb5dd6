// SPDX-License-Identifier: Apache-2.0
//
// Who checks what kernels compute on CPUs (train.witness). The core sets them;
// kernels, of which each plugin has its own, ask here.
#ifndef CAPSTAN_KERNELS_CONTEXT_WITNESS_H_
#define CAPSTAN_KERNELS_CONTEXT_WITNESS_H_

#include <cstdint>
#include <functional>

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

// Checks what updates read, and remembers what they write. Kernels that don't
// ask it have it done around the whole update.
class UpdateWitness {
 public:
  virtual ~UpdateWitness();

  // An update calls it for each block of its elements before it reads any of
  // them, and after it has written them, while they are in a cache: on the
  // block's float32 parameters, of which the witness knows what belongs to
  // them. On any thread. A block has WordSums::kBlock elements, a shard's last
  // one fewer.
  virtual void BeforeBlock(const float* parameter, int64_t elements) = 0;
  virtual void AfterBlock(const float* parameter, int64_t elements) = 0;
  // Whether blocks that begin there are those that it knows.
  virtual bool Knows(const float* parameter) const = 0;
};

// That of the update that runs now, or null.
UpdateWitness* CurrentUpdateWitness();
void SetUpdateWitness(UpdateWitness* witness);

// Watches memory that a forward leaves to its backward.
class KeptWitness {
 public:
  virtual ~KeptWitness();

  // Nothing writes there before Check or Drop. On any thread.
  virtual void Take(const void* memory, int64_t bytes) = 0;
  // Mends what has changed since; nothing, if it wasn't taken.
  virtual void Check(void* memory, int64_t bytes) = 0;
  virtual void Drop(const void* memory) = 0;
};

// The current one, or null.
KeptWitness* CurrentKeptWitness();
void SetKeptWitness(KeptWitness* witness);

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_WITNESS_H_
