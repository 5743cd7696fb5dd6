// SPDX-License-Identifier: Apache-2.0
//
// Flips a bit of a rank's run in each of its steps. Linked into a test, it
// takes the place of functions of the core, as testing/faults does.
#ifndef CAPSTAN_TESTS_WITNESS_FLIPS_H_
#define CAPSTAN_TESTS_WITNESS_FLIPS_H_

#include <cstdint>
#include <string>

namespace capstan {

enum class FlipKind {
  kProduct,  // a number of a product, as it comes out of the registers
  kWeights,  // a master between two steps
  kState,    // the optimizer's state before its update
  kKept,     // what a forward keeps for its backward
  kSent,     // a bucket of gradients before it is summed over the ranks
  kReceived  // one after it
};
constexpr const char* kFlipNames[] = {"product", "weights", "state",
                                      "kept",    "sent",    "received"};

struct FlipOptions {
  uint64_t seed = 1;
  int ranks = 2;
  int64_t first_step = 0;  // 0: none
  int64_t last_step = 0;
  // Of so many steps the last has flips, but for those of weights, which are
  // behind it.
  int64_t period = 1;
  // Messages are gathers of weights, whose results are flipped; else sums of
  // gradients.
  bool gathers = false;
  // Flips are of weights only, in two words of one lane, which can't be mended.
  bool two_words = false;
  // Once an evaluation has measured, a bit of rank 1's weights changes, once.
  bool in_evaluation = false;
  std::string log;  // a file for each rank's lines: log.RANK
};

// What step `step` gets: the same on all ranks.
struct PlannedFlip {
  FlipKind kind = FlipKind::kProduct;
  int rank = 0;
  uint32_t where = 0;
  uint32_t bit = 0;
};
PlannedFlip FlipOf(const FlipOptions& options, int64_t step);

// Call in a rank's process before it trains. Each flip becomes a line "STEP
// RANK KIND BIT OUTCOME DETAIL": "mended"; "below", which is put right by the
// test, so that the run stays comparable, DETAIL of the bound; "missed", which
// is beyond it and wasn't told; or "memory", which the run's receipts and
// events tell about, as they do of what is "mended" in a sum that is scattered.
void BeginFlips(const FlipOptions& options, int rank);

}  // namespace capstan

#endif  // CAPSTAN_TESTS_WITNESS_FLIPS_H_
