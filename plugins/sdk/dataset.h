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

// On GPUs, whose libraries choose kernels anew for each shape, objectives may
// lengthen padded rows of `length` tokens to this many, so that there are few
// lengths: up to the next multiple of a power of two, which is 64 from 512
// tokens on, and at least 8, so that an eighth is added at most from 64 on; but
// to at most `most` if that is greater than `length`. Plans count on it.
inline int64_t LengthOnGpu(int64_t length, int64_t most) {
  int64_t multiple = 64;
  while (multiple > 8 && 8 * multiple > length) multiple /= 2;
  const int64_t whole = (length + multiple - 1) / multiple * multiple;
  return std::max(length, std::min(whole, most));
}

// Throws std::invalid_argument with the existing names if there is none.
const at::Tensor& RequiredTensor(const Batch& batch, const std::string& name);

// The tensor in CPU memory, undefined if there is none. In training on a GPU
// the core keeps host copies of kInputIds, kLabels, kPositions and whatever has
// one dimension, a number for each sample, so that this never waits for the
// device.
at::Tensor HostTensor(const Batch& batch, const std::string& name);
// The name of such a copy.
std::string HostCopyName(const std::string& name);

// Totals of a batch of text: its tokens, and its positions without one.
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
};

// Beside DatasetReader, on the same object, found by dynamic_cast: for readers
// that draw their samples, a mixture for instance, so that epochs differ.
class EpochDraws {
 public:
  virtual ~EpochDraws();
  // Whether this one does: then Read and sample_length take any index from 0
  // on, and epoch e is the samples from e * size() to (e + 1) * size() - 1,
  // which the core shuffles among themselves if the reader wants it to.
  // Constant.
  virtual bool draws_anew() const = 0;
};

// Whether `reader` is one of those.
bool DrawsAnew(const DatasetReader& reader);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_DATASET_H_
