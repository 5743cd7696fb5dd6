// SPDX-License-Identifier: Apache-2.0
//
// Batches of pairs: the format that readers of preferences and their objectives
// share.
#ifndef CAPSTAN_PLUGINS_SDK_PAIR_BATCH_H_
#define CAPSTAN_PLUGINS_SDK_PAIR_BATCH_H_

namespace capstan {

// A sample is two texts, each a prompt and a completion, of which the first was
// preferred. In a batch of B samples kInputIds, kLabels ([2 B, T]) and
// kTokenCounts ([2 B]) have the chosen texts in rows 0 to B - 1 and the
// rejected ones in rows B to 2 B - 1; only completions have labels.
// DatasetReader::sample_length counts both texts.

// [B] int64: a hash of the pair's tokens and labels, the same on each machine,
// which is the key of cached results. A batch that has it is a batch of pairs.
inline constexpr char kPairKeys[] = "pair_keys";

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PAIR_BATCH_H_
