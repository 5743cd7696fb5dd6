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

constexpr int64_t kIgnoredTarget = -100;  // a label or action not trained on

// Tensors by name, [B, ..]. Objectives of text read kInputIds and, if present,
// kLabels, kPositions and kTokenCounts; others document what they read.
using Batch = std::map<std::string, at::Tensor>;

inline constexpr char kInputIds[] = "input_ids";  // [B, T] int64
// [B, T] int64; negative: not trained on. Default: input_ids.
inline constexpr char kLabels[] = "labels";
// [B, T] int64: each token's position in its document, which is all it sees.
inline constexpr char kPositions[] = "positions";
// [B] int64: the tokens in each row, before padding. Default: no padding.
extern const char kTokenCounts[];
// [B] int64, added by the core: the sample's offset in the run (in evaluation,
// in the dataset), to key random numbers independently of strategy and ranks.
inline constexpr char kSamplePosition[] = "sample_position";

// Prompts, whose answers an objective samples (Objective::Rollout): kInputIds
// ends where an answer begins, there are no kLabels, and kRowText has the rows.
// [B, L] uint8: each row's JSON as in its file, with zeros behind it.
inline constexpr char kRowText[] = "row_text";

// Pairs: two texts, prompt and completion each, of which the first was
// preferred. In kInputIds, kLabels ([2 B, T]) and kTokenCounts ([2 B]), rows 0
// to B - 1 are the chosen texts and rows B to 2 B - 1 the rejected ones; only
// completions have labels. DatasetReader::sample_length counts both texts.

// [B] int64: a hash of each pair's tokens and labels, the same on all machines,
// as the key of cached results. Only batches of pairs have it.
inline constexpr char kPairKeys[] = "pair_keys";

// [B] int64, only of pairs whose second text wasn't rejected, but is the prompt
// with another's completion: whether the first is desirable.
inline constexpr char kDesirable[] = "desirable";

// [B] float32, may be absent: by how much each chosen text's score should be
// above its rejected one's.
inline constexpr char kMargins[] = "margins";

// The length to pad rows to on GPUs, which choose kernels anew for each shape:
// a multiple of a power of two from 8 to 64, at most 1/8 more from 64 tokens
// on, above `most` only if `length` is. Memory plans rely on it.
inline int64_t LengthOnGpu(int64_t length, int64_t most) {
  int64_t multiple = 64;
  while (multiple > 8 && 8 * multiple > length) multiple /= 2;
  const int64_t whole = (length + multiple - 1) / multiple * multiple;
  return std::max(length, std::min(whole, most));
}

// Throws std::invalid_argument, with the existing names, if there is none.
const at::Tensor& RequiredTensor(const Batch& batch, const std::string& name);

// Returns the tensor in CPU memory; undefined if there is none. In training on
// GPUs the core keeps copies of kInputIds, kLabels, kPositions and 1-D tensors,
// so that this doesn't wait.
at::Tensor HostTensor(const Batch& batch, const std::string& name);
std::string HostCopyName(const std::string& name);  // of such a copy

struct TokenTotals {
  int64_t tokens = 0;
  int64_t padding = 0;  // positions without a token
};
TokenTotals CountTokens(const Batch& batch);

// A file that a reader has read, and its counts: "bytes" as it is; "members"
// (of gzip; frames of zstd) and "unpacked_bytes" of a packed one; "rows" that
// become samples, "bad_rows" and "untrained_rows" that don't; others.
struct CountedFile {
  std::string path;
  std::map<std::string, int64_t> counts;
};

// Random access to samples, without mutable state. Create checks the files.
class DatasetReader {
 public:
  virtual ~DatasetReader();

  virtual int64_t size() const = 0;  // greater than 0; constant

  virtual bool shuffle() const = 0;  // whether the core shuffles each epoch

  // Makes the batch of the samples, in order, in CPU memory. Reuse the memory
  // of tensors in *batch, which nobody else uses, where shapes fit, and remove
  // those that this batch lacks. Thread-safe. Errors name file and position.
  virtual absl::Status Read(absl::Span<const int64_t> indices,
                            Batch* batch) const = 0;

  // Returns the split held back, or null. Called if the run has no eval_data.
  virtual absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const = 0;

  // In tokens; 0 if the data isn't text.
  virtual int64_t max_sequence_length() const { return 0; }
  // In tokens, in O(1), to batch similar lengths; 0: all are equal, or no text.
  virtual int64_t sample_length(int64_t index) const { return 0; }
  // Sentences for users before training, on rows left out, for example.
  virtual std::vector<std::string> notes() const { return {}; }
  // In the order in which they are read, without what another reader counts.
  virtual std::vector<CountedFile> counted_files() const { return {}; }
  // Owned by the reader; null if the data isn't text.
  virtual const Tokenizer* tokenizer() const { return nullptr; }
  // Returns the prompt for a model to answer `text`: in conversations, the
  // user's turn and the head of the assistant's. Requires a tokenizer.
  virtual std::vector<int64_t> PromptIds(absl::string_view text) const {
    return tokenizer()->Encode(text);
  }

  // Whether epochs differ because samples are drawn, as from a mixture. Read
  // and sample_length then accept any index >= 0; epoch e is the samples
  // [e * size(), (e + 1) * size()), shuffled as shuffle() says. Constant.
  virtual bool draws_anew() const { return false; }

  // Returns a line by which a resumed run detects changed data: equal if, and
  // but for hash collisions only if, the samples consist of the same bytes,
  // wherever the files lie. The core compares tokenizer and settings. Called
  // once, on one rank, when a run begins; may read all data once at the speed
  // of memory. Errors name the file. "": unknown; paths are compared instead.
  virtual absl::StatusOr<std::string> Digest() const { return std::string(); }

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
  virtual void Room3();
  virtual void Room4();
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_DATASET_H_
