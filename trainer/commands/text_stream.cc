// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/text_stream.h"

#include <algorithm>
#include <utility>

#include "trainer/metrics/console.h"

namespace capstan {
namespace {

// Bytes at the end of `text` that begin a character without completing it.
size_t IncompleteBytes(absl::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;  // a later byte of one
    const size_t length = byte >= 0xf0   ? 4
                          : byte >= 0xe0 ? 3
                          : byte >= 0xc0 ? 2
                                         : 1;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

std::string TextStream::Add(absl::string_view bytes) {
  rest_.append(bytes.data(), bytes.size());
  const size_t whole = rest_.size() - IncompleteBytes(rest_);
  std::string shown = PrintableText(absl::string_view(rest_).substr(0, whole));
  rest_.erase(0, whole);
  return shown;
}

std::string TextStream::Finish() {
  return PrintableText(std::exchange(rest_, std::string()));
}

}  // namespace capstan
