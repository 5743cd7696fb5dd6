// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_BATCHED_CACHE_H_
#define CAPSTAN_PLUGINS_SDK_BATCHED_CACHE_H_

#include <cstdint>
#include <vector>

namespace capstan {

// A KvCache also derives from this if its rows may be texts of different
// lengths; found by dynamic_cast. TokenInput::positions then goes with the
// cache: a token's position in its own text, negative for padding, which is
// only allowed on the left of a row's first token. No token sees padding.
class BatchedCache {
 public:
  virtual ~BatchedCache();
  // How many tokens each row's text has, or soon will have: before the first of
  // them, if they come in several pieces. A model whose positions depend on the
  // length of the text (dynamic rope, longrope) then makes all of them alike.
  // Does nothing by default.
  virtual void ExpectLengths(const std::vector<int64_t>& lengths);
  // Forgets all but the first `length` positions, padding included.
  virtual void Rewind(int64_t length) = 0;
  // Keeps these rows only, ascending; the batch shrinks.
  virtual void KeepRows(const std::vector<int64_t>& rows) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_BATCHED_CACHE_H_
