// SPDX-License-Identifier: Apache-2.0
#include "inference/engine/answers.h"

#include <algorithm>
#include <iterator>

namespace capstan {
namespace {

// Bytes of the character that begins with `first`; 1 if none does.
size_t CharacterBytes(unsigned char first) {
  return first >= 0xF0 && first < 0xF8 ? 4
         : first >= 0xE0               ? 3
         : first >= 0xC0               ? 2
                                       : 1;
}

// The size of `text` without the beginning of a character at its end.
size_t WholeCharacters(absl::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    return CharacterBytes(byte) > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace

void AnswerQueue::Add(AnswerPiece piece) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pieces_.push_back(std::move(piece));
  changed_.notify_all();
}

absl::optional<AnswerPiece> AnswerQueue::Next(std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (left_ == 0) return absl::nullopt;
  changed_.wait_for(lock, limit, [this] { return !pieces_.empty(); });
  if (pieces_.empty()) return absl::nullopt;
  AnswerPiece piece = std::move(pieces_.front());
  pieces_.pop_front();
  // What has come since, too, for a client that is slower than the model.
  while (!piece.last && !pieces_.empty() &&
         pieces_.front().request == piece.request) {
    AnswerPiece& next = pieces_.front();
    std::move(next.tokens.begin(), next.tokens.end(),
              std::back_inserter(piece.tokens));
    if (!next.whole.empty()) piece.whole = std::move(next.whole);
    piece.last = next.last;
    piece.status = next.status;
    piece.stopped = next.stopped;
    pieces_.pop_front();
  }
  if (piece.last) --left_;
  return piece;
}

size_t AnswerQueue::left() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return left_;
}

std::string CertainText::Add(absl::string_view bytes) {
  text_.append(bytes.data(), bytes.size());
  const size_t certain = stops_->Certain(text_);
  return Upto(WholeCharacters(absl::string_view(text_).substr(0, certain)));
}

std::string CertainText::Finish() { return Upto(stops_->EndOf(text_)); }

std::string CertainText::Upto(size_t end) {
  std::string given = text_.substr(0, end);
  text_.erase(0, end);
  return given;
}

}  // namespace capstan
