// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/bpe.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

// Up to this many symbols, a linear scan of all pairs beats a heap.
constexpr size_t kShort = 40;
constexpr uint32_t kNone = ~uint32_t{0};

// Bytes from the start of `left` to the end of `right`.
uint32_t Joined(const Symbol& left, const Symbol& right) {
  return static_cast<uint32_t>(right.begin + right.size - left.begin);
}

}  // namespace

size_t Bpe::Prefix(absl::string_view word) const {
  if (!prefixes_) return word.size();
  if (byte_level_) {
    for (size_t i = 1; i < word.size(); ++i) {
      const auto left = static_cast<unsigned char>(word[i - 1]);
      const auto right = static_cast<unsigned char>(word[i]);
      if (!byte_neighbours_[left << 8 | right]) return i;
    }
    return word.size();
  }
  size_t at = 0;
  uint64_t left = NextCharacter(word, &at);
  const auto is_known = [&](size_t begin) {
    return (byte_fallback_ && every_byte_) ||
           vocabulary_.ModelIdOf(word.substr(begin, at - begin)) >= 0;
  };
  bool left_known = is_known(0);
  while (at < word.size()) {
    const size_t end = at;
    const uint64_t right = NextCharacter(word, &at);
    const bool right_known = is_known(end);
    // Unknown characters may be fused, or dropped between two that merge.
    if (left_known && right_known &&
        !neighbours_.contains(left << 32 | right)) {
      return end;
    }
    left = right;
    left_known = right_known;
  }
  return word.size();
}

int32_t Bpe::WholeWord(absl::string_view word) const {
  if (byte_level_) {
    const auto found = words_.find(word);
    return found == words_.end() ? -1 : found->second;
  }
  return vocabulary_.ModelIdOf(word);
}

void Bpe::Encode(absl::string_view word, absl::string_view text,
                 BpeState* state, std::vector<int64_t>* ids) const {
  if (!has_merges_ && byte_level_ && !ignore_merges_) {
    Run(word, state);
    for (const Symbol& symbol : state->symbols) ids->push_back(symbol.id);
    return;
  }
  // Prefixes don't pay off for short byte words.
  const bool whole = byte_level_ && word.size() <= WordCache::kMaxWord;
  while (!word.empty()) {
    const absl::string_view prefix =
        whole || ignore_merges_ ? word : word.substr(0, Prefix(word));
    word.remove_prefix(prefix.size());
    const bool cached = prefix.size() <= WordCache::kMaxWord;
    WordCache::Key key;
    if (cached) {
      key = WordCache::MakeKey(prefix, text);
      size_t n = 0;
      const uint32_t* const found = state->cache.Find(key, &n);
      if (found != nullptr) {
        for (size_t i = 0; i < n; ++i) ids->push_back(found[i]);
        continue;
      }
    }
    Run(prefix, state);
    uint32_t first[WordCache::kMaxIds];
    const size_t n = state->symbols.size();
    for (size_t i = 0; i < n; ++i) {
      ids->push_back(state->symbols[i].id);
      if (i < WordCache::kMaxIds) first[i] = state->symbols[i].id;
    }
    if (cached && n > 0 && n <= WordCache::kMaxIds) {
      state->cache.Add(key, first, n);
    }
  }
}

void Bpe::EncodeWithPlaces(absl::string_view word, absl::string_view text,
                           BpeState* state,
                           std::vector<Symbol>* symbols) const {
  symbols->clear();
  size_t begin = 0;
  if (!sizes_.empty()) {
    state->ids.clear();
    Encode(word, text, state, &state->ids);
    for (int64_t id : state->ids) {
      symbols->push_back({static_cast<uint32_t>(id), sizes_[id], begin});
      begin += sizes_[id];
    }
    return;
  }
  while (begin < word.size()) {
    const absl::string_view rest = word.substr(begin);
    const absl::string_view prefix =
        ignore_merges_ ? rest : rest.substr(0, Prefix(rest));
    Run(prefix, state);
    for (Symbol symbol : state->symbols) {
      symbol.begin += begin;
      symbols->push_back(symbol);
    }
    begin += prefix.size();
  }
}

void Bpe::Run(absl::string_view word, BpeState* state) const {
  state->symbols.clear();
  if (ignore_merges_) {
    const int32_t id = WholeWord(word);
    if (id >= 0) {
      state->symbols.push_back(
          {static_cast<uint32_t>(id), static_cast<uint32_t>(word.size()), 0});
      return;
    }
  }
  if (byte_level_) {
    Split(word, &state->symbols);
  } else {
    SplitCharacters(word, &state->symbols);
  }
  if (!has_merges_ || state->symbols.size() < 2) return;
  if (state->symbols.size() <= kShort) {
    MergeShort(state);
  } else {
    MergeLong(state);
  }
}

void Bpe::Split(absl::string_view word, std::vector<Symbol>* symbols) const {
  for (size_t i = 0; i < word.size(); ++i) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(word[i])];
    if (id >= 0) {
      symbols->push_back({static_cast<uint32_t>(id), 1, i});
    } else if (!unknown_token_.empty()) {
      const bool fused = fuse_unknown_ && !symbols->empty() && i > 0 &&
                         byte_ids_[static_cast<unsigned char>(word[i - 1])] < 0;
      if (fused) {
        ++symbols->back().size;
      } else {
        symbols->push_back({UnknownId(), 1, i});
      }
    }
  }
}

uint32_t Bpe::UnknownId() const {
  if (unknown_ >= 0) return static_cast<uint32_t>(unknown_);
  throw UnknownWord(absl::StrCat(
      "a character isn't in the vocabulary, nor is model.unk_token \"",
      unknown_token_, "\", which stands for such characters"));
}

bool Bpe::AddBytes(absl::string_view text, size_t begin, size_t size,
                   std::vector<Symbol>* symbols) const {
  const auto id = [this](char c) {
    return byte_ids_[static_cast<unsigned char>(c)];
  };
  if (!byte_fallback_ || !std::all_of(text.begin(), text.end(),
                                      [&](char c) { return id(c) >= 0; })) {
    return false;
  }
  // With an affix there are more bytes than in the word.
  const bool each = text.size() == size;
  for (size_t i = 0; i < text.size(); ++i) {
    symbols->push_back({static_cast<uint32_t>(id(text[i])),
                        static_cast<uint32_t>(each ? 1 : size),
                        each ? begin + i : begin});
  }
  return true;
}

// An unknown token waits for a known character or the end, so that bytes of the
// fallback come before it, in its place; so it is in the reference.
void Bpe::SplitCharacters(absl::string_view word,
                          std::vector<Symbol>* symbols) const {
  Symbol unknown = {0, 0, 0};  // size 0: none waits
  const auto flush = [&] {
    if (unknown.size == 0) return;
    if (!symbols->empty() && symbols->back().begin >= unknown.begin) {
      unknown.begin = symbols->back().begin + symbols->back().size;
    }
    symbols->push_back(unknown);
    unknown.size = 0;
  };
  std::string with_affix;
  for (size_t at = 0; at < word.size();) {
    const size_t begin = at;
    NextCharacter(word, &at);
    const auto size = static_cast<uint32_t>(at - begin);
    absl::string_view text = word.substr(begin, size);
    if (has_affix_) {
      with_affix = absl::StrCat(begin > 0 ? prefix_ : "", text,
                                at == word.size() ? suffix_ : "");
      text = with_affix;
    }
    const int32_t id = vocabulary_.ModelIdOf(text);
    if (id >= 0) {
      flush();
      symbols->push_back({static_cast<uint32_t>(id), size, begin});
      continue;
    }
    if (AddBytes(text, begin - unknown.size, size, symbols) ||
        unknown_token_.empty()) {
      continue;
    }
    if (unknown.size > 0 && fuse_unknown_) {
      unknown.size += size;
      continue;
    }
    flush();
    unknown = {UnknownId(), size, begin};
  }
  flush();
}

bool Bpe::leaves_out() const {
  return unknown_ < 0 && !(every_byte_ && (byte_level_ || byte_fallback_));
}

size_t Bpe::FirstLeftOut(absl::string_view word) const {
  if (!leaves_out() || (ignore_merges_ && WholeWord(word) >= 0)) {
    return absl::string_view::npos;
  }
  std::vector<Symbol> symbols;
  if (byte_level_) {
    Split(word, &symbols);
  } else {
    SplitCharacters(word, &symbols);
  }
  size_t end = 0;
  for (const Symbol& symbol : symbols) {
    if (symbol.begin > end) return end;
    end = symbol.begin + symbol.size;
  }
  return end < word.size() ? end : absl::string_view::npos;
}

void Bpe::MergeShort(BpeState* state) const {
  Symbol* const symbols = state->symbols.data();
  size_t n = state->symbols.size();
  Merge merges[kShort];  // of symbol i and i + 1
  for (size_t i = 0; i + 1 < n; ++i) {
    merges[i] = merges_->Find(symbols[i].id, symbols[i + 1].id);
  }
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoRank) break;
    symbols[best].id = merges[best].id;
    symbols[best].size = Joined(symbols[best], symbols[best + 1]);
    std::copy(symbols + best + 2, symbols + n, symbols + best + 1);
    std::copy(merges + best + 1, merges + n - 1, merges + best);
    --n;
    if (best + 1 < n) {
      merges[best] = merges_->Find(symbols[best].id, symbols[best + 1].id);
    }
    if (best > 0) {
      merges[best - 1] = merges_->Find(symbols[best - 1].id, symbols[best].id);
    }
  }
  state->symbols.resize(n);
}

// Uses a heap of mergeable pairs; stale entries are skipped.
void Bpe::MergeLong(BpeState* state) const {
  std::vector<Symbol>& symbols = state->symbols;
  std::vector<BpeState::Candidate>& heap = state->heap;
  if (symbols.size() >= kNone) {
    throw std::length_error("a word of 4 GiB can't be tokenized");
  }
  const auto n = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t>& next = state->next;
  std::vector<uint32_t>& previous = state->previous;
  next.resize(n);
  previous.resize(n);
  heap.clear();
  const auto later = [](const BpeState::Candidate& a,
                        const BpeState::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const auto candidate = [&](uint32_t left, uint32_t right) {
    const Merge merge = merges_->Find(symbols[left].id, symbols[right].id);
    if (merge.rank == kNoRank) return false;
    heap.push_back(
        {merge.rank, left, symbols[right].id, symbols[left].id, merge.id});
    return true;
  };
  for (uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1 < n ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
    if (i + 1 < n) candidate(i, i + 1);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeState::Candidate top = heap.back();
    heap.pop_back();
    const uint32_t left = top.left;
    const uint32_t right = next[left];
    // A symbol merged into its left neighbour has no id.
    if (symbols[left].id != top.left_id || right == kNone ||
        symbols[right].id != top.right_id) {
      continue;
    }
    symbols[left].id = top.id;
    symbols[left].size = Joined(symbols[left], symbols[right]);
    symbols[right].id = kNone;
    next[left] = next[right];
    if (next[left] != kNone) {
      previous[next[left]] = left;
      if (candidate(left, next[left])) {
        std::push_heap(heap.begin(), heap.end(), later);
      }
    }
    if (previous[left] != kNone && candidate(previous[left], left)) {
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  symbols.erase(std::remove_if(symbols.begin(), symbols.end(),
                               [](const Symbol& s) { return s.id == kNone; }),
                symbols.end());
}

namespace {

constexpr size_t kMaxMerges = 1 << 24;

// "" if null.
absl::StatusOr<std::string> Affix(const JsonNode& node) {
  if (node.IsNull()) return "";
  return node.String();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bpe>> Bpe::Make(const JsonNode& model,
                                               bool byte_level,
                                               const Vocabulary* vocabulary) {
  std::unique_ptr<Bpe> bpe(new Bpe(byte_level, vocabulary));
  CAPSTAN_RETURN_IF_ERROR(bpe->Load(model));
  return bpe;
}

bool Bpe::TakesBytes(const JsonNode& model) {
  // What isn't as it must be is found by Load.
  const auto plain = [&model](const char* affix) {
    return Affix(model.Member(affix)).value_or("").empty();
  };
  return plain("continuing_subword_prefix") && plain("end_of_word_suffix") &&
         !model.Bool("byte_fallback", false).value_or(false);
}

absl::Status Bpe::Load(const JsonNode& model) {
  CAPSTAN_RETURN_IF_ERROR(model.CheckMembers(
      {"type", "dropout", "unk_token", "continuing_subword_prefix",
       "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
       "vocab", "merges"}));
  CAPSTAN_ASSIGN_OR_RETURN(prefix_,
                           Affix(model.Member("continuing_subword_prefix")));
  CAPSTAN_ASSIGN_OR_RETURN(suffix_, Affix(model.Member("end_of_word_suffix")));
  has_affix_ = !prefix_.empty() || !suffix_.empty();
  // Then the first and the last character differ from others.
  if (has_affix_) prefixes_ = plain_ = false;
  const JsonNode dropout = model.Member("dropout");
  if (!dropout.IsNull()) {
    CAPSTAN_ASSIGN_OR_RETURN(const double probability, dropout.Number());
    if (probability != 0.0) {
      return dropout.Unsupported("random merges aren't supported");
    }
  }
  CAPSTAN_ASSIGN_OR_RETURN(fuse_unknown_, model.Bool("fuse_unk", false));
  CAPSTAN_ASSIGN_OR_RETURN(ignore_merges_, model.Bool("ignore_merges", false));
  CAPSTAN_ASSIGN_OR_RETURN(byte_fallback_, model.Bool("byte_fallback", false));
  const JsonNode unknown = model.Member("unk_token");
  if (!unknown.IsNull()) {
    CAPSTAN_ASSIGN_OR_RETURN(unknown_token_, unknown.String());
    unknown_ = vocabulary_.ModelIdOf(unknown_token_);
  }
  LoadBytes();
  CAPSTAN_RETURN_IF_ERROR(LoadMerges(model.Member("merges")));
  NoteSizes();
  return absl::OkStatus();
}

void Bpe::LoadBytes() {
  byte_ids_ = vocabulary_.ByteIds();
  for (int b = 0; byte_level_ && b < 256; ++b) {
    std::string token;
    AppendCharacter(ByteToCharacter(b), &token);
    byte_ids_[b] = vocabulary_.ModelIdOf(token);
  }
  every_byte_ = *std::min_element(byte_ids_.begin(), byte_ids_.end()) >= 0;
  // Unknown bytes may be fused, or dropped between two that merge.
  if (byte_level_ && !every_byte_) prefixes_ = false;
  if (byte_level_ && ignore_merges_) {
    std::string bytes;
    for (int64_t id = 0; id < vocabulary_.size(); ++id) {
      if (vocabulary_.Has(id) && vocabulary_.InModel(id) &&
          CharactersToBytes(vocabulary_.TokenOf(id), &bytes)) {
        words_[bytes] = static_cast<int32_t>(id);
      }
    }
  }
}

absl::Status Bpe::LoadMerges(const JsonNode& merges) {
  CAPSTAN_ASSIGN_OR_RETURN(const simdjson::dom::array array, merges.Array());
  size_t n = 0;  // array.size() saturates
  for (auto merge = array.begin(); merge != array.end(); ++merge) ++n;
  if (n > kMaxMerges) return merges.Invalid("there are too many");
  merges_ = std::make_unique<MergeTable>(n);
  has_merges_ = n > 0;
  byte_neighbours_.resize(1 << 16);
  uint32_t rank = 0;
  for (const simdjson::dom::element merge : array) {
    std::string_view left;
    std::string_view right;
    std::string_view both;
    simdjson::dom::array pair;
    bool valid = false;
    if (merge.get(both) == simdjson::SUCCESS) {
      // The older format: "left right", perhaps with a header.
      if (absl::StartsWith(ToView(both), "#version")) continue;
      const size_t space = both.find(' ');
      valid = space != both.npos && both.find(' ', space + 1) == both.npos;
      if (valid) {
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
    } else if (merge.get(pair) == simdjson::SUCCESS && pair.size() == 2) {
      valid = pair.at(0).get(left) == simdjson::SUCCESS &&
              pair.at(1).get(right) == simdjson::SUCCESS;
    }
    if (!valid) {
      return merges.Invalid("merge ", rank,
                            " is neither \"left right\" nor "
                            "[\"left\", \"right\"]");
    }
    CAPSTAN_RETURN_IF_ERROR(
        AddMerge(merges, rank, ToView(left), ToView(right)));
    ++rank;
  }
  return absl::OkStatus();
}

absl::Status Bpe::AddMerge(const JsonNode& merges, uint32_t rank,
                           absl::string_view left, absl::string_view right) {
  if (right.size() < prefix_.size()) {
    return merges.Invalid("merge ", rank, ": \"", right,
                          "\" is shorter than continuing_subword_prefix");
  }
  const std::string both = absl::StrCat(left, right.substr(prefix_.size()));
  int32_t ids[3];
  size_t i = 0;
  for (absl::string_view token : {left, right, absl::string_view(both)}) {
    ids[i] = vocabulary_.ModelIdOf(token);
    if (ids[i] < 0) {
      return merges.Invalid("merge ", rank, " of \"", left, "\" and \"", right,
                            "\": \"", token, "\" isn't in the vocabulary");
    }
    ++i;
  }
  merges_->Set(ids[0], ids[1], {rank, static_cast<uint32_t>(ids[2])});
  // Such tokens stand for other characters than their text.
  for (i = 0; i < 3; ++i) {
    if (ids[i] == unknown_ ||
        (byte_fallback_ && ByteOfToken(vocabulary_.TokenOf(ids[i])) >= 0)) {
      prefixes_ = plain_ = false;
    }
  }
  NoteNeighbours(both);
  return absl::OkStatus();
}

void Bpe::NoteSizes() {
  if (!plain_ || !every_byte_ || !(byte_level_ || byte_fallback_)) return;
  sizes_.resize(vocabulary_.size());
  std::string bytes;
  for (int64_t id = 0; id < vocabulary_.size(); ++id) {
    const absl::string_view token = vocabulary_.TokenOf(id);
    if (byte_level_) {
      CharactersToBytes(token, &bytes);
      sizes_[id] = static_cast<uint32_t>(bytes.size());
    } else {
      sizes_[id] =
          static_cast<uint32_t>(ByteOfToken(token) >= 0 ? 1 : token.size());
    }
  }
}

void Bpe::NoteNeighbours(absl::string_view token) {
  if (byte_level_) {
    std::string bytes;
    // A token of other characters is unreachable.
    if (!CharactersToBytes(token, &bytes)) return;
    for (size_t i = 1; i < bytes.size(); ++i) {
      byte_neighbours_[static_cast<unsigned char>(bytes[i - 1]) << 8 |
                       static_cast<unsigned char>(bytes[i])] = true;
    }
    return;
  }
  size_t at = 0;
  if (token.empty()) return;
  uint64_t left = NextCharacter(token, &at);
  while (at < token.size()) {
    const uint64_t right = NextCharacter(token, &at);
    neighbours_.insert(left << 32 | right);
    left = right;
  }
}

}  // namespace capstan::tokenizer
