// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMMANDS_TEXT_STREAM_H_
#define CAPSTAN_TRAINER_COMMANDS_TEXT_STREAM_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

// Text that comes in pieces of bytes, cut anywhere: a character is given when
// it is whole, and what is no text (or would move a terminal's cursor) as
// U+FFFD.
class TextStream {
 public:
  // What can be shown now.
  std::string Add(absl::string_view bytes);
  // The rest.
  std::string Finish();

 private:
  std::string rest_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_TEXT_STREAM_H_
