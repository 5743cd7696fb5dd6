// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/budget.h"

#include <time.h>

#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace capstan::tokenizer {
namespace {

// Compatibility forms make 11 bytes of one; each of some steps copies the text.
constexpr size_t kTimesText = 64;
constexpr size_t kMoreBytes = 1 << 20;

// A hundredth of what the slowest of known tokenizers do.
constexpr int64_t kMilliseconds = 1000;
constexpr size_t kBytesPerMillisecond = 500;

int64_t NowMs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * int64_t{1000} + now.tv_nsec / 1000000;
}

size_t MostBytes(size_t text_bytes) {
  return kTimesText * text_bytes + kMoreBytes;
}

}  // namespace

void Budget::Begin(size_t text_bytes) {
  text_bytes_ = text_bytes;
  bytes_left_ = MostBytes(text_bytes);
  begin_ms_ = NowMs(CLOCK_MONOTONIC_COARSE);
  thread_ms_ = -1;
}

int64_t Budget::CheckTime() {
  const int64_t most_ms =
      kMilliseconds + static_cast<int64_t>(text_bytes_ / kBytesPerMillisecond);
  const int64_t passed_ms = NowMs(CLOCK_MONOTONIC_COARSE) - begin_ms_;
  if (passed_ms <= most_ms) return passed_ms;
  const int64_t thread_ms = NowMs(CLOCK_THREAD_CPUTIME_ID);
  if (thread_ms_ < 0) thread_ms_ = thread_ms;
  if (thread_ms - thread_ms_ <= most_ms) return passed_ms;
  throw std::runtime_error(absl::StrCat(
      "a text of ", text_bytes_, " bytes takes more than ", 2 * most_ms / 1000,
      " s, the limit for its size: its expressions or added_tokens take a time "
      "that grows faster than the text"));
}

void Budget::Exceed() const {
  throw std::runtime_error(
      absl::StrCat("its normalizer and pre_tokenizer make more than ",
                   MostBytes(text_bytes_), " bytes of a text of ", text_bytes_,
                   " bytes, the limit for its size"));
}

}  // namespace capstan::tokenizer
