// SPDX-License-Identifier: Apache-2.0
//
// The precompiled_charsmap of SentencePiece (src/normalizer.cc) as Hugging
// Face's tokenizers read it: bytes of the trie u32, the trie (a Darts double
// array of u32), replacements that each end with a 0 byte.
#include <utf8proc.h>

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

// Clusters of characters below so many bytes are looked up as a whole.
constexpr size_t kMaxCluster = 6;

// A unit of the double array (Darts-clone's DoubleArrayUnit).
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) == 1; }
uint32_t Value(uint32_t unit) { return unit & 0x7fffffff; }
uint32_t Label(uint32_t unit) { return unit & 0x800000ff; }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

class Precompiled final : public Normalizer {
 public:
  Precompiled(std::vector<uint32_t> units, std::string texts)
      : units_(std::move(units)), texts_(std::move(texts)) {}

  bool Apply(absl::string_view text, RegexState* state, std::string* out,
             Alignment* alignment) const override {
    out->clear();
    bool changed = false;
    for (size_t at = 0; at < text.size();) {
      const absl::string_view cluster = NextCluster(text.substr(at));
      at += cluster.size();
      absl::string_view to;
      if (cluster.size() < kMaxCluster && Find(cluster, &to)) {
        Change(cluster, to, state, out, alignment);
        changed = true;
        continue;
      }
      for (size_t i = 0; i < cluster.size();) {
        const size_t bytes = CharacterBytes(cluster[i]);
        const absl::string_view character = cluster.substr(i, bytes);
        i += bytes;
        if (Find(character, &to)) {
          Change(character, to, state, out, alignment);
          changed = true;
        } else {
          out->append(character.data(), character.size());
          alignment->Keep(character.size());
        }
      }
    }
    return changed;
  }

 private:
  // A grapheme cluster (Unicode Standard Annex 29).
  static absl::string_view NextCluster(absl::string_view text) {
    size_t end = 0;
    uint32_t code = NextCharacter(text, &end);
    utf8proc_int32_t state = 0;
    while (end < text.size()) {
      size_t next = end;
      const uint32_t following = NextCharacter(text, &next);
      if (utf8proc_grapheme_break_stateful(
              static_cast<utf8proc_int32_t>(code),
              static_cast<utf8proc_int32_t>(following), &state)) {
        break;
      }
      code = following;
      end = next;
    }
    return text.substr(0, end);
  }

  // What the shortest key that `text` begins with is replaced by; so does the
  // reference, although it then replaces all of `text`.
  bool Find(absl::string_view text, absl::string_view* to) const {
    size_t at = Offset(units_[0]);
    for (char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      at ^= byte;
      if (byte == 0 || at >= units_.size() || Label(units_[at]) != byte) {
        return false;
      }
      const uint32_t unit = units_[at];
      at ^= Offset(unit);
      if (!HasLeaf(unit)) continue;
      if (at >= units_.size() || Value(units_[at]) >= texts_.size()) {
        return false;
      }
      *to = absl::string_view(texts_.data() + Value(units_[at]));
      return true;
    }
    return false;
  }

  static void Change(absl::string_view from, absl::string_view to,
                     RegexState* state, std::string* out,
                     Alignment* alignment) {
    state->budget.Charge(to.size());
    out->append(to.data(), to.size());
    alignment->Change(from.size(), to.size());
  }

  const std::vector<uint32_t> units_;  // not empty
  const std::string texts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> MakePrecompiled(
    const JsonNode& node) {
  CAPSTAN_RETURN_IF_ERROR(node.CheckMembers({"type", "precompiled_charsmap"}));
  const JsonNode map = node.Member("precompiled_charsmap");
  CAPSTAN_ASSIGN_OR_RETURN(const std::string base64, map.String());
  std::string bytes;
  uint32_t trie_bytes = 0;
  if (!absl::Base64Unescape(base64, &bytes) ||
      bytes.size() < sizeof(trie_bytes)) {
    return map.Invalid("isn't a SentencePiece map in base64");
  }
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  const absl::string_view rest =
      absl::string_view(bytes).substr(sizeof(trie_bytes));
  std::vector<uint32_t> units(trie_bytes / sizeof(uint32_t));
  const size_t unit_bytes = units.size() * sizeof(uint32_t);
  if (units.empty() || unit_bytes > rest.size()) {
    return map.Invalid("says that its trie has ", trie_bytes, " bytes, of ",
                       rest.size());
  }
  std::memcpy(units.data(), rest.data(), unit_bytes);
  std::string texts(rest.substr(unit_bytes));
  if (!IsUtf8(texts)) return map.Invalid("has replacements that aren't UTF-8");
  return std::make_unique<Precompiled>(std::move(units), std::move(texts));
}

}  // namespace capstan::tokenizer
