// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_BUDGET_H_
#define CAPSTAN_TEXT_TOKENIZER_BUDGET_H_

#include <cstddef>
#include <cstdint>

namespace capstan::tokenizer {

// What tokenizing one text may take. A hostile tokenizer.json can ask for texts
// a million times as long as the given one, or for expressions that take hours:
// both end in a std::runtime_error that names the limit. Not thread-safe.
class Budget {
 public:
  // Begins anew, for a text of so many bytes.
  void Begin(size_t text_bytes);

  // To be called before as many bytes of text are derived from the given one.
  void Charge(size_t bytes) {
    if (bytes > bytes_left_) Exceed();
    bytes_left_ -= bytes;
  }

  // To be called now and then where time isn't bounded by the text's length;
  // looks at the clock every few calls.
  void Tick() {
    if (++ticks_ % 16 == 0) CheckTime();
  }
  // The same at once. Returns the milliseconds since the budget began; they
  // advance in steps of a few.
  int64_t CheckTime();

 private:
  [[noreturn]] void Exceed() const;

  size_t text_bytes_ = 0;
  size_t bytes_left_ = 0;
  uint32_t ticks_ = 0;
  int64_t begin_ms_ = 0;  // of a coarse clock
  // This thread's, once the time is up by the clock: the machine may have done
  // something else meanwhile. -1: not yet.
  int64_t thread_ms_ = -1;
};

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_BUDGET_H_
