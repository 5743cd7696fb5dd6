// SPDX-License-Identifier: Apache-2.0
#include "desk/generate/text_view.h"

#include <sys/ioctl.h>
#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "text/tokenizer/unicode.h"

namespace capstan {
namespace {

constexpr char kMasked[] = "\xe2\x96\x91";  // U+2591, a light shade

// The terminal's current height; 24 if unknown.
size_t Rows(int fd) {
  winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return 24;
  return size.ws_row;
}

// Terminal cells of a character. (wcwidth needs a locale.)
int Width(uint32_t code) {
  return utf8proc_charwidth(static_cast<utf8proc_int32_t>(code));
}

// Length of an incomplete character at the end of `text`.
size_t IncompleteBytes(absl::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const char byte = text[text.size() - back];
    if (tokenizer::IsContinuation(byte)) continue;
    return tokenizer::CharacterBytes(byte) > back ? back : 0;
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

int CellsOf(absl::string_view text) {
  int cells = 0;
  for (size_t at = 0; at < text.size();) {
    cells += Width(tokenizer::NextCharacter(text, &at));
  }
  return cells;
}

std::vector<std::string> TerminalLines(absl::string_view text, int columns) {
  std::vector<std::string> lines(1);
  int width = 0;
  const auto add = [&](absl::string_view bytes, int cells) {
    if (width + cells > columns && width > 0) {
      lines.emplace_back();
      width = 0;
    }
    lines.back().append(bytes.data(), bytes.size());
    width += cells;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t code = tokenizer::NextCharacter(text, &at);
    if (code == '\n') {
      lines.emplace_back();
      width = 0;
    } else if (code == '\t') {
      for (int spaces = 8 - width % 8; spaces > 0; --spaces) add(" ", 1);
    } else {
      add(text.substr(begin, at - begin), Width(code));
    }
  }
  return lines;
}

std::string StoppedText::Add(absl::string_view bytes) {
  text_.append(bytes.data(), bytes.size());
  const size_t end = std::max(shown_, stops_.Certain(text_));
  const size_t begin = std::exchange(shown_, end);
  return stream_.Add(absl::string_view(text_).substr(begin, end - begin));
}

std::string StoppedText::Finish() {
  const size_t end = std::max(shown_, stops_.EndOf(text_));
  const size_t begin = std::exchange(shown_, end);
  return stream_.Add(absl::string_view(text_).substr(begin, end - begin)) +
         stream_.Finish();
}

MaskedTextView::MaskedTextView(int fd, const Tokenizer* tokenizer,
                               int64_t mask_token, std::vector<int64_t> stops,
                               absl::string_view before, StopStrings strings)
    : fd_(fd),
      console_(fd),
      tokenizer_(tokenizer),
      mask_token_(mask_token),
      stops_(std::move(stops)),
      before_(PrintableText(before)),
      strings_(std::move(strings)) {
  stops_.erase(std::remove(stops_.begin(), stops_.end(), -1), stops_.end());
}

absl::Span<const int64_t> MaskedTextView::BeforeStop(
    absl::Span<const int64_t> tokens) const {
  const auto stop = std::find_first_of(tokens.begin(), tokens.end(),
                                       stops_.begin(), stops_.end());
  return tokens.first(stop - tokens.begin());
}

std::string MaskedTextView::Decode(absl::Span<const int64_t> tokens) const {
  std::string text = tokenizer_->Decode(BeforeStop(tokens));
  text.resize(strings_.EndOf(text));
  return text;
}

std::string MaskedTextView::Erase() {
  if (drawn_ == 0) return "";
  const size_t below = std::exchange(drawn_, 0) - 1;
  const std::string up =
      below > 0 ? absl::StrCat("\x1b[", below, "A") : std::string();
  // Line by line: some terminals save a screen that is cleared at once to
  // scrollback.
  std::string erase = absl::StrCat(up, "\r\x1b[K");
  for (size_t i = 0; i < below; ++i) erase += "\n\x1b[K";
  return absl::StrCat(erase, up, "\r");
}

void MaskedTextView::Show(absl::Span<const int64_t> tokens) {
  if (!console_.terminal()) return;
  std::string text = before_;
  // How much is surely worth showing.
  size_t chosen = text.size();
  tokens = BeforeStop(tokens);
  for (auto at = tokens.begin(); at != tokens.end();) {
    const auto masks = std::find(at, tokens.end(), mask_token_);
    if (masks != at) {
      text += PrintableText(
          tokenizer_->Decode(tokens.subspan(at - tokens.begin(), masks - at)));
      chosen = text.size();
    }
    for (at = masks; at != tokens.end() && *at == mask_token_; ++at) {
      text += kMasked;
    }
  }
  const int columns = console_.Columns();
  std::vector<std::string> lines = TerminalLines(text, columns);
  // A terminal can't move back to lines scrolled off: don't draw those.
  const size_t most = std::max<size_t>(Rows(fd_), 2) - 1;
  if (lines.size() > most) {
    const size_t seen =
        TerminalLines(absl::string_view(text).substr(0, chosen), columns)
            .size();
    const size_t end = std::max(seen, most);
    lines.resize(std::min(lines.size(), end));
    lines.erase(lines.begin(), lines.end() - most);
  }
  // Disables line wrapping, in case a character's width differs from our
  // estimate.
  std::string frame =
      absl::StrCat("\x1b[?7l", Erase(), absl::StrJoin(lines, "\n"), "\x1b[?7h");
  drawn_ = lines.size();
  console_.Write(frame);
}

void MaskedTextView::Finish(absl::Span<const int64_t> tokens) {
  console_.Write(
      absl::StrCat(Erase(), before_, PrintableText(Decode(tokens)), "\n"));
}

}  // namespace capstan
