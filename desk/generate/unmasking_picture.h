// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_GENERATE_UNMASKING_PICTURE_H_
#define CAPSTAN_DESK_GENERATE_UNMASKING_PICTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// In which order a text's tokens were chosen, as a picture.
class UnmaskingPicture {
 public:
  // `given`: tokens of the prompt, which are drawn without a colour.
  UnmaskingPicture(int64_t mask_token, size_t given)
      : mask_token_(mask_token), given_(given) {}

  // After a step: the text with mask_token where none is chosen yet.
  void Note(absl::Span<const int64_t> text);

  // An SVG of 720 units' width, readable on light and dark pages: each token in
  // the colour of its step, from the first's to the last's, with the step's
  // number as tooltip. `text` is the whole one, prompt included.
  std::string Svg(absl::Span<const int64_t> text,
                  const Tokenizer& tokenizer) const;

 private:
  const int64_t mask_token_;
  const size_t given_;
  std::vector<int> step_of_;  // from 1; 0: not chosen yet
  int steps_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_GENERATE_UNMASKING_PICTURE_H_
