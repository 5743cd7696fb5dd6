// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_TEXT_TOKEN_SOURCE_H_
#define CAPSTAN_DATASETS_TEXT_TOKEN_SOURCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files.h"
#include "datasets/text/text.pb.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::text {

// The tokens of a text from its beginning to its end. Thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t size() const = 0;
  // Whether each token is a byte of the text.
  virtual bool bytes() const { return false; }
  // Where validation begins if it gets this fraction of the text.
  virtual int64_t TrainSize(double validation_fraction) const = 0;
  // Reads tokens [begin, begin + n), which must exist.
  virtual absl::Status Read(int64_t begin, int64_t n, int64_t* out) const = 0;
};

struct TokenizedText {
  std::shared_ptr<const TokenSource> tokens;
  std::shared_ptr<const Tokenizer> tokenizer;
};

// `file` as tokens of the config's tokenizer, tokenized now if needed. Errors
// name the config's field.
absl::StatusOr<TokenizedText> OpenTokens(
    const Config& config, std::shared_ptr<const MappedFile> file);

}  // namespace capstan::text

#endif  // CAPSTAN_DATASETS_TEXT_TOKEN_SOURCE_H_
