// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_DATASET_H_
#define CAPSTAN_PLUGINS_SDK_DATASET_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace capstan {

// Tensors by name; the first dimension of each is the batch. An objective says
// which it reads: causal_lm reads "input_ids" [B, T] int64 and, if present,
// "labels" [B, T] int64 (-100: not trained on; default: input_ids).
using Batch = std::map<std::string, at::Tensor>;

// Text to token ids and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer();
  virtual int64_t vocab_size() const = 0;
  virtual std::vector<int64_t> Encode(absl::string_view text) const = 0;
  // Bytes; a caller that prints them deals with incomplete UTF-8.
  virtual std::string Decode(absl::Span<const int64_t> ids) const = 0;
  // Writes tokenizer.json and tokenizer_config.json for Hugging Face's tools.
  virtual absl::Status Save(const std::string& folder) const = 0;
};

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
  // Thread-safe. Errors name the file and the place in it; an index that isn't
  // there is one.
  virtual absl::Status Read(absl::Span<const int64_t> indices,
                            Batch* batch) const = 0;

  // What the config holds back for validation, or null if nothing. Called when
  // the run has no eval_data of its own.
  virtual absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const = 0;

  // The greatest length of a sample in tokens, 0 if it isn't text.
  virtual int64_t max_sequence_length() const { return 0; }
  // Null if the data isn't text. Owned by the reader.
  virtual const Tokenizer* tokenizer() const { return nullptr; }
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_DATASET_H_
