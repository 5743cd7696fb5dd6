// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_DATASET_H_
#define CAPSTAN_PLUGINS_SDK_DATASET_H_

#include <ATen/core/Tensor.h>

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

// A target (a label, an action) that isn't learned.
constexpr int64_t kIgnoredTarget = -100;

// Tensors by name; the first dimension of each is the batch. An objective says
// which it reads; those of text read kInputIds and, if present, kLabels,
// kPositions and kTokenCounts. A reader may use any other names.
using Batch = std::map<std::string, at::Tensor>;

// [B, T] int64.
inline constexpr char kInputIds[] = "input_ids";
// [B, T] int64; negative (kIgnoredTarget): not trained on. Default: input_ids.
inline constexpr char kLabels[] = "labels";
// [B, T] int64: of each token in its document, where a row holds several
// documents, none of which sees another's tokens.
inline constexpr char kPositions[] = "positions";
// [B] int64: of each row of kInputIds, how many of its positions hold tokens;
// the others are padding. Without it none are.
extern const char kTokenCounts[];
// [B] int64, added by the core: the offset of each sample in the run's sequence
// of samples, a key for random numbers that are the same under every strategy
// and number of ranks; in evaluation the sample's own index.
inline constexpr char kSamplePosition[] = "sample_position";

// The tensor of that name. Throws std::invalid_argument, which says what there
// is instead.
const at::Tensor& RequiredTensor(const Batch& batch, const std::string& name);

// The tensor of that name in CPU memory; undefined if there is none. In
// training on a GPU the core leaves copies of kLabels, kPositions,
// kSamplePosition and kTokenCounts there, and nothing waits for the device.
at::Tensor HostTensor(const Batch& batch, const std::string& name);
// The name of such a copy.
std::string HostCopyName(const std::string& name);

// The tokens of a batch of text, and the positions of it that hold none.
struct TokenTotals {
  int64_t tokens = 0;
  int64_t padding = 0;
};
TokenTotals CountTokens(const Batch& batch);

// Random access to the samples of a dataset. Order, epochs, sharding over
// ranks, prefetching, resuming and copies to a GPU are the core's: a reader
// has no state that moves. Create opens the files, and so reports what is
// wrong with them.
class DatasetReader {
 public:
  virtual ~DatasetReader();

  // Samples, greater than 0. Constant.
  virtual int64_t size() const = 0;

  // Whether the core visits the samples in a new random order each epoch.
  virtual bool shuffle() const = 0;

  // Makes the batch of the given samples, in that order, in CPU memory.
  // *batch may hold the tensors of an earlier batch of this reader, which
  // nobody else uses: they may be written into where their shapes fit, and must
  // be removed where this batch has no tensor of that name. Thread-safe. Errors
  // name the file and the place in it; an index that isn't there is one.
  virtual absl::Status Read(absl::Span<const int64_t> indices,
                            Batch* batch) const = 0;

  // What the config holds back for validation, or null if nothing. Called when
  // the run has no eval_data of its own.
  virtual absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const = 0;

  // The greatest length of a sample in tokens, 0 if it isn't text.
  virtual int64_t max_sequence_length() const { return 0; }
  // That of one sample, cheap to tell; 0 if they are all alike, or it isn't
  // text. For batches of samples of about one length.
  virtual int64_t sample_length(int64_t index) const { return 0; }
  // What a user should know before training, a sentence each: rows that are
  // left out, for one.
  virtual std::vector<std::string> notes() const { return {}; }
  // Null if the data isn't text. Owned by the reader.
  virtual const Tokenizer* tokenizer() const { return nullptr; }
  // What a model that is trained on this data is given to answer a user's
  // `text`: a reader of conversations makes it the user's turn, with the head
  // of the assistant's behind it; else it is the text's own tokens. Only where
  // there is a tokenizer.
  virtual std::vector<int64_t> PromptIds(absl::string_view text) const {
    return tokenizer()->Encode(text);
  }
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_DATASET_H_
