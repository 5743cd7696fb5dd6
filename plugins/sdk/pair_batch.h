// SPDX-License-Identifier: Apache-2.0
//
// Batches of pairs: what readers of preferences and their objectives agree on.
#ifndef CAPSTAN_PLUGINS_SDK_PAIR_BATCH_H_
#define CAPSTAN_PLUGINS_SDK_PAIR_BATCH_H_

namespace capstan {

// A sample is two texts, each a prompt and a completion, of which the first was
// preferred. In a batch of B samples kInputIds, kLabels ([2 B, T]) and
// kTokenCounts ([2 B]) have the chosen texts in rows 0 to B - 1 and the
// rejected ones in rows B to 2 B - 1; labels are on the completions. Lengths
// that a reader tells of samples count both texts.

// [B] int64: a hash of the pair's tokens and labels, the same on each machine,
// by which what has been computed of it is found again. Its presence says that
// the batch is one of pairs.
inline constexpr char kPairKeys[] = "pair_keys";

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PAIR_BATCH_H_
