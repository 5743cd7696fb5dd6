// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_DATASET_H_
#define CAPSTAN_PLUGINS_SDK_DATASET_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// A target (a label, an action) that is not trained on.
constexpr int64_t kIgnoredTarget = -100;

// Tensors by name; dimension 0 of each is the batch. Objectives of text read
// kInputIds and, if present, kLabels, kPositions and kTokenCounts; others
// document what they read.
using Batch = std::map<std::string, at::Tensor>;

// [B, T] int64.
inline constexpr char kInputIds[] = "input_ids";
// [B, T] int64; negative (kIgnoredTarget): not trained on. Default: input_ids.
inline constexpr char kLabels[] = "labels";
// [B, T] int64: each token's position in its document, for rows that pack
// several documents. Tokens don't see other documents.
inline constexpr char kPositions[] = "positions";
// [B] int64: the number of tokens in each row of kInputIds; the rest is
// padding. Default: no padding.
extern const char kTokenCounts[];
// [B] int64, added by the core: the sample's offset in the run's sequence of
// samples (in evaluation, its index in the dataset), as a key for random
// numbers that don't depend on strategy or ranks.
inline constexpr char kSamplePosition[] = "sample_position";

// The length to which objectives may pad rows of `length` tokens on GPUs, whose
// libraries choose kernels anew for each shape, so that few lengths occur.
// Rounds up to a multiple of a power of two from 8 to 64, which pads by at most
// 1/8 from 64 tokens on; never beyond `most`, unless `length` is. Memory plans
// rely on it.
inline int64_t LengthOnGpu(int64_t length, int64_t most) {
  int64_t multiple = 64;
  while (multiple > 8 && 8 * multiple > length) multiple /= 2;
  const int64_t whole = (length + multiple - 1) / multiple * multiple;
  return std::max(length, std::min(whole, most));
}

// Throws std::invalid_argument with the existing names if there is none.
const at::Tensor& RequiredTensor(const Batch& batch, const std::string& name);

// Returns the tensor in CPU memory; undefined if the batch has none. In
// training on a GPU the core keeps host copies of kInputIds, kLabels,
// kPositions and all tensors of one dimension, so that this never waits for the
// device.
at::Tensor HostTensor(const Batch& batch, const std::string& name);
// The name of such a copy.
std::string HostCopyName(const std::string& name);

// The number of tokens in a batch of text, and of positions without one.
struct TokenTotals {
  int64_t tokens = 0;
  int64_t padding = 0;
};
TokenTotals CountTokens(const Batch& batch);

// Random access to the samples of a dataset. The core handles order, epochs,
// sharding over ranks, prefetching, resuming and copies to a GPU, so a reader
// has no mutable state. Create opens and checks the files.
class DatasetReader {
 public:
  virtual ~DatasetReader();

  // The number of samples, greater than 0. Constant.
  virtual int64_t size() const = 0;

  // Whether the core shuffles the samples in each epoch.
  virtual bool shuffle() const = 0;

  // Makes the batch of the given samples, in that order, in CPU memory. *batch
  // may hold tensors of an earlier batch that nobody else uses: reuse their
  // memory where shapes fit, and remove what this batch doesn't have.
  // Thread-safe. Errors name the file and the position in it.
  virtual absl::Status Read(absl::Span<const int64_t> indices,
                            Batch* batch) const = 0;

  // The validation split that the config sets aside, or null. Called if the run
  // has no eval_data.
  virtual absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const = 0;

  // The length of the longest sample in tokens; 0 if it isn't text.
  virtual int64_t max_sequence_length() const { return 0; }
  // The length of one sample, in O(1), for batches of samples of similar
  // length; 0 if all have the same length, or it isn't text.
  virtual int64_t sample_length(int64_t index) const { return 0; }
  // What a user should know before training, e.g. rows left out; a sentence
  // each.
  virtual std::vector<std::string> notes() const { return {}; }
  // Owned by the reader; null if the data isn't text.
  virtual const Tokenizer* tokenizer() const { return nullptr; }
  // The prompt for a model trained on this data to answer `text`. A reader of
  // conversations makes it the user's turn, followed by the head of the
  // assistant's; by default it is just the text's tokens. Requires a tokenizer.
  virtual std::vector<int64_t> PromptIds(absl::string_view text) const {
    return tokenizer()->Encode(text);
  }

  // Whether epochs differ because samples are drawn, from a mixture for
  // instance. Read and sample_length then accept any index >= 0, and epoch e
  // consists of the samples [e * size(), (e + 1) * size()), which the core
  // shuffles among themselves if shuffle(). Constant.
  virtual bool draws_anew() const { return false; }

  // A line that identifies the data, by which a resumed run detects that they
  // have changed. Two readers have the same digest if their samples are made of
  // the same bytes, wherever the files lie, and (but for hash collisions) only
  // then. It needn't cover the tokenizer or the config's other settings, which
  // the core compares. One rank calls it once, when a run begins; it may take
  // one pass over the data at the speed of memory. Errors name the file. "":
  // unknown; the core then compares the config's paths.
  virtual absl::StatusOr<std::string> Digest() const { return std::string(); }
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_DATASET_H_
