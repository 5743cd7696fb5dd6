// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_BYTE_TRIE_H_
#define CAPSTAN_TEXT_TOKENIZER_BYTE_TRIE_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace capstan::tokenizer {

// Numbers by texts, to find those that a text begins with. Thread-safe after
// the last Set.
class ByteTrie {
 public:
  // `key` isn't empty. Overwrites an earlier value.
  void Set(absl::string_view key, int32_t value) {
    uint32_t node = 0;
    for (char c : key) {
      const auto [child, added] = children_.try_emplace(Edge(node, c), nodes_);
      if (added) ++nodes_;
      node = child->second;
    }
    values_[node] = value;
  }

  bool Has(absl::string_view key) const {
    bool has = false;
    ForEachPrefix(
        key, [&](int32_t, size_t size) { has = has || size == key.size(); });
    return has;
  }

  // Calls use(value, bytes) for each key that `text` begins with, from the
  // shortest to the longest.
  template <typename Use>
  void ForEachPrefix(absl::string_view text, const Use& use) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto child = children_.find(Edge(node, text[i]));
      if (child == children_.end()) return;
      node = child->second;
      const auto value = values_.find(node);
      if (value != values_.end()) use(value->second, i + 1);
    }
  }

 private:
  static uint64_t Edge(uint32_t node, char c) {
    return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c);
  }

  absl::flat_hash_map<uint64_t, uint32_t> children_;  // node 0 is the root
  absl::flat_hash_map<uint32_t, int32_t> values_;     // by node
  uint32_t nodes_ = 1;
};

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_BYTE_TRIE_H_
