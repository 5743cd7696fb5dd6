// SPDX-License-Identifier: Apache-2.0
//
// What stands where in a config's text, as far as it has been read: protobuf's
// errors only say line, column and the last part of a name.
#ifndef CAPSTAN_HOST_CONFIG_TEXT_PLACE_H_
#define CAPSTAN_HOST_CONFIG_TEXT_PLACE_H_

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan {

struct TextToken {
  int line = 0;    // from 0
  int column = 0;  // from 0, as protobuf counts: a tab goes on to the next 8th
  std::string text;
  int message = 0;  // its number: the same for those in the same { .. }
};

struct TextPlace {
  // The message that the place is in: "optimizer", "" for the whole, and its
  // type; null if the text doesn't tell.
  std::string path;
  const google::protobuf::Descriptor* type = nullptr;
  // The tokens up to the place, its own included.
  std::vector<TextToken> tokens;

  // The last token that reads `text`; null if there is none.
  const TextToken* Last(absl::string_view text) const;
  // The last one before `token` in its message.
  const TextToken* LastBefore(const TextToken& token,
                              absl::string_view text) const;
};

// The place at `line` and `column` of `text`, a message of type `type`. Plugins
// are known if they are loaded.
TextPlace PlaceIn(const std::string& text,
                  const google::protobuf::Descriptor* type, int line,
                  int column);

// Whether the first line of `text` that isn't empty or a comment, with # or //,
// begins with a field of `type`. That of a file of another kind doesn't.
bool BeginsAs(const google::protobuf::Descriptor* type, absl::string_view text);

// The byte of `line` at `column`, counted as in TextToken; at most its size.
size_t OffsetIn(absl::string_view line, int column);

// `line` with `token`, which stands in it, replaced by `text`.
std::string WithToken(const std::string& line, const TextToken& token,
                      const std::string& text);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_TEXT_PLACE_H_
