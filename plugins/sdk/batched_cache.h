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
  // Announces how many tokens each row's text will have. If they come in
  // several pieces, it is called before the first. A model whose positions
  // depend on the length of the text (dynamic rope, longrope) then computes all
  // of them for that length. Does nothing by default.
  virtual void ExpectLengths(const std::vector<int64_t>& lengths);
  // Forgets all but the first `length` positions, padding included.
  virtual void Rewind(int64_t length) = 0;
  // Replaces the batch by rows.size() rows, of which row i is the former
  // rows[i]. A row may be taken several times or not at all.
  virtual void KeepRows(const std::vector<int64_t>& rows) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_BATCHED_CACHE_H_
