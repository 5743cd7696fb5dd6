// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/sample_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/random.h"
#include "base/status.h"
#include "datasets/chat/cached_file.h"
#include "plugins/sdk/dataset.h"
#include "text/tokens/in_order.h"

namespace capstan::chat {
namespace {

// More samples per epoch mean that the weights are a mistake.
constexpr double kMostSamples = 1e15;

}  // namespace

// The number of draws of each source in an epoch.
absl::StatusOr<std::vector<int64_t>> Mixture::Draws(
    absl::Span<const int64_t> sizes, absl::Span<const double> weights,
    int64_t epoch) {
  double sum = 0;
  double times = 0;  // for the source that needs most passes
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    times = std::max(times, static_cast<double>(sizes[i]) / weights[i]);
  }
  if (epoch > 0) times = static_cast<double>(epoch) / sum;
  if (!(times * sum < kMostSamples)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the weights make an epoch of more than ", kMostSamples,
                     " samples: they are too far apart"));
  }
  std::vector<int64_t> draws;
  for (size_t i = 0; i < weights.size(); ++i) {
    int64_t here = std::llround(times * weights[i]);
    // Rounding must not lose the last sample of the slowest source.
    if (epoch == 0) here = std::max(here, sizes[i]);
    if (here == 0 && sizes[i] > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "an epoch of ", epoch, " samples has none of the source ", i + 1,
          ", whose weight is ", weights[i]));
    }
    draws.push_back(sizes[i] == 0 ? 0 : here);
  }
  return draws;
}

absl::StatusOr<Mixture> Mixture::Create(absl::Span<const int64_t> sizes,
                                        absl::Span<const double> weights,
                                        uint64_t seed, int64_t epoch) {
  Mixture mixture;
  mixture.weighted_ = !weights.empty();
  mixture.sizes_.assign(sizes.begin(), sizes.end());
  mixture.order_key_ = RandomKey(seed, "chat.mixture.order");
  std::vector<int64_t> draws = mixture.sizes_;
  if (mixture.weighted_) {
    CAPSTAN_ASSIGN_OR_RETURN(draws, Draws(sizes, weights, epoch));
  }
  int64_t end = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    mixture.ends_.push_back(end += draws[i]);
    mixture.keys_.push_back(
        RandomKey(seed, absl::StrCat("chat.mixture.source.", i)));
  }
  return mixture;
}

Mixture::Draw Mixture::At(int64_t index) const {
  const int64_t epoch = weighted_ ? index / size() : 0;
  index -= epoch * size();
  if (weighted_) {
    const uint64_t key =
        epoch == 0 ? order_key_
                   : RandomKey(order_key_, absl::StrCat("epoch ", epoch));
    index = PermutedIndex(key, index, size());
  }
  const size_t source =
      std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
  const int64_t begin = source == 0 ? 0 : ends_[source - 1];
  if (!weighted_) return {source, index - begin};
  const int64_t draw = index - begin + epoch * (ends_[source] - begin);
  const int64_t size = sizes_[source];
  // Each pass over a source has its own order.
  const uint64_t key = RandomKey(keys_[source], absl::StrCat(draw / size));
  return {source, PermutedIndex(key, draw % size, size)};
}

namespace {

// Rows that a thread tokenizes at a time.
constexpr size_t kRowsAtOnce = 256;

// How many of each a part has. The file begins with each part's; then come each
// part's begins and pieces, each part's items, and each part's tokens.
struct Counts {
  uint64_t begins = 0;
  uint64_t pieces = 0;
  uint64_t items = 0;
  uint64_t tokens = 0;
};
using Header = std::array<Counts, Part_ARRAYSIZE>;

bool Fits(const Header& header, uint64_t bytes) {
  uint64_t all = sizeof(header);
  for (const Counts& part : header) {
    // So that no sum overflows.
    if (std::max({part.begins, part.pieces, part.items, part.tokens}) >=
        bytes) {
      return false;
    }
    all += sizeof(uint64_t) * (part.begins + part.pieces) +
           sizeof(uint32_t) * (part.items + part.tokens);
  }
  return bytes == all;
}

// Items by descending length, stably.
std::vector<uint32_t> ByLength(absl::Span<const uint32_t> lengths) {
  std::vector<uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return lengths[a] > lengths[b];
  });
  return order;
}

// The pack of each item; *count is the number of packs.
std::vector<uint32_t> Assign(absl::Span<const uint32_t> lengths,
                             uint32_t capacity, uint32_t* count) {
  std::vector<uint32_t> pack(lengths.size());
  std::vector<std::vector<uint32_t>> with_room(capacity + 1);
  std::set<uint32_t> rooms;  // sizes for which there are packs
  *count = 0;
  for (uint32_t item : ByLength(lengths)) {
    const auto best = rooms.lower_bound(lengths[item]);
    uint32_t room = capacity;
    if (best == rooms.end()) {
      pack[item] = (*count)++;
    } else {
      room = *best;
      pack[item] = with_room[room].back();
      with_room[room].pop_back();
      if (with_room[room].empty()) rooms.erase(best);
    }
    room -= lengths[item];
    if (room == 0) continue;
    if (with_room[room].empty()) rooms.insert(room);
    with_room[room].push_back(pack[item]);
  }
  return pack;
}

// How a part's rows are packed, or, if they are cut, how.
struct PackedRows {
  Packs packs;
  std::vector<uint64_t> pieces;
};

PackedRows Pack(const SourceRows& rows, const std::vector<uint32_t>& part,
                const SampleOptions& options) {
  const auto most = static_cast<uint64_t>(options.max_length);
  const bool cut = CutsRows(options.packing);
  PackedRows packed;
  std::vector<uint32_t> lengths;
  uint64_t at = 0;
  for (const uint32_t row : part) {
    for (uint64_t left = rows.At(row).row.tokens; left > 0;) {
      const uint64_t here = std::min(left, most);
      if (cut) packed.pieces.push_back(at);
      lengths.push_back(static_cast<uint32_t>(here));
      at += here;
      left = cut ? left - here : 0;
    }
  }
  if (cut) packed.pieces.push_back(at);
  packed.packs = PackBestFit(lengths, static_cast<uint32_t>(most));
  if (cut) return packed;
  for (uint32_t& item : packed.packs.items) item = part[item];
  return packed;
}

// All parts' rows, one part after the other.
absl::Status WriteTokens(const PartRows& parts,
                         const SampleTable::ReadRow& read, CacheWriter* file) {
  std::vector<uint32_t> order;
  for (const auto& part : parts) {
    order.insert(order.end(), part.begin(), part.end());
  }
  size_t next = 0;
  const auto take_next = [&]() -> absl::optional<std::pair<size_t, size_t>> {
    if (next >= order.size()) return absl::nullopt;
    const size_t begin = next;
    next = std::min(order.size(), begin + kRowsAtOnce);
    return std::make_pair(begin, next);
  };
  const auto tokens_of = [&](const std::pair<size_t, size_t>& range)
      -> absl::StatusOr<std::vector<uint32_t>> {
    std::vector<uint32_t> tokens;
    for (size_t i = range.first; i < range.second; ++i) {
      CAPSTAN_ASSIGN_OR_RETURN(const TokenRow* const row, read(order[i]));
      for (size_t t = 0; t < row->ids.size(); ++t) {
        const bool trained = row->labels[t] != kIgnoredTarget;
        tokens.push_back(static_cast<uint32_t>(row->ids[t]) |
                         (trained ? 0 : SampleTable::kUntrained));
      }
    }
    return tokens;
  };
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  return text::MapInOrder<std::pair<size_t, size_t>, std::vector<uint32_t>>(
      static_cast<int>(std::min(cores, order.size() / kRowsAtOnce)), take_next,
      tokens_of, [file](const std::vector<uint32_t>& tokens) {
        return file->Write(BytesOf(tokens.data(), tokens.size()));
      });
}

template <typename Number>
absl::Status WriteNumbers(const std::vector<Number>& numbers,
                          CacheWriter* file) {
  return file->Write(BytesOf(numbers.data(), numbers.size()));
}

absl::Status Write(const SourceRows& rows, const SampleOptions& options,
                   const SampleTable::ReadRow& read, CacheWriter* file) {
  CAPSTAN_ASSIGN_OR_RETURN(const PartRows parts, SplitRows(rows, options));
  Header header;
  std::array<PackedRows, Part_ARRAYSIZE> all;
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    Packs& packs = all[part].packs;
    packs.begins.clear();
    if (options.packing == NONE) packs.items = parts[part];
    if (options.packing == BEST_FIT || options.packing == BEST_FIT_SPLIT) {
      all[part] = Pack(rows, parts[part], options);
    }
    header[part].begins = packs.begins.size();
    header[part].pieces = all[part].pieces.size();
    header[part].items = packs.items.size();
    if (!CutsRows(options.packing)) continue;
    for (const uint32_t row : parts[part]) {
      header[part].tokens += rows.At(row).row.tokens;
    }
  }
  CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(&header, 1)));
  for (const PackedRows& part : all) {
    CAPSTAN_RETURN_IF_ERROR(WriteNumbers(part.packs.begins, file));
    CAPSTAN_RETURN_IF_ERROR(WriteNumbers(part.pieces, file));
  }
  for (const PackedRows& part : all) {
    CAPSTAN_RETURN_IF_ERROR(WriteNumbers(part.packs.items, file));
  }
  if (!CutsRows(options.packing)) return absl::OkStatus();
  return WriteTokens(parts, read, file);
}

// By validation_fraction, which chooses by content.
absl::StatusOr<PartRows> SplitByHash(const SourceRows& rows, double fraction) {
  std::vector<uint64_t> hashes;
  hashes.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    hashes.push_back(rows.At(i).row.hash);
  }
  uint64_t held_out = 0;
  if (fraction > 0) {
    CAPSTAN_ASSIGN_OR_RETURN(held_out, HeldOutBelow(hashes, fraction));
  }
  PartRows parts;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool held = fraction > 0 && hashes[i] <= held_out;
    parts[held ? VALIDATION : TRAINING].push_back(static_cast<uint32_t>(i));
  }
  return parts;
}

// Whether the numbers rise from 0 to `end`, by 1 to `most` each.
bool Rises(absl::Span<const uint64_t> numbers, uint64_t end, uint64_t most) {
  if (numbers.empty()) return end == 0;
  if (numbers.front() != 0 || numbers.back() != end) return false;
  for (size_t i = 0; i + 1 < numbers.size(); ++i) {
    if (numbers[i] >= numbers[i + 1] || numbers[i + 1] - numbers[i] > most) {
      return false;
    }
  }
  return true;
}

}  // namespace

Packs PackBestFit(absl::Span<const uint32_t> lengths, uint32_t capacity) {
  uint32_t count = 0;
  std::vector<uint32_t> pack = Assign(lengths, capacity, &count);
  // Renumbered by their first items.
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> number(count, kNone);
  uint32_t next = 0;
  Packs packs;
  packs.begins.assign(count + 1, 0);
  for (uint32_t& p : pack) {
    if (number[p] == kNone) number[p] = next++;
    p = number[p];
    ++packs.begins[p + 1];
  }
  std::partial_sum(packs.begins.begin(), packs.begins.end(),
                   packs.begins.begin());
  std::vector<uint64_t> place(packs.begins.begin(), packs.begins.end() - 1);
  packs.items.resize(pack.size());
  for (size_t i = 0; i < pack.size(); ++i) {
    packs.items[place[pack[i]]++] = static_cast<uint32_t>(i);
  }
  return packs;
}

std::string SampleOptions::Text() const {
  return absl::StrCat(
      Packing_Name(packing), " ", max_length, " ", validation_fraction, " ",
      split.train(), " ", split.validation(), " ", split.test(), " ",
      Order_Name(split.order()), " ", split.order() == RANDOM ? seed : 0);
}

absl::StatusOr<PartRows> SplitRows(const SourceRows& rows,
                                   const SampleOptions& options) {
  const Split& split = options.split;
  if (split.train() == 0) return SplitByHash(rows, options.validation_fraction);
  const auto all = static_cast<int64_t>(rows.size());
  const auto count = [all](double fraction) {
    return static_cast<int64_t>(static_cast<double>(all) * fraction);
  };
  const int64_t trained = count(split.train());
  const int64_t validated =
      split.test() == 0 ? all - trained : count(split.validation());
  const uint64_t key = RandomKey(options.seed, "chat.split");
  PartRows parts;
  for (int64_t i = 0; i < all; ++i) {
    const int64_t at = split.order() == RANDOM ? PermutedIndex(key, i, all) : i;
    const Part part = at < trained               ? TRAINING
                      : at < trained + validated ? VALIDATION
                                                 : TESTING;
    parts[part].push_back(static_cast<uint32_t>(i));
  }
  if (parts[TRAINING].empty() ||
      (split.validation() > 0 && parts[VALIDATION].empty()) ||
      (split.test() > 0 && parts[TESTING].empty())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its ", all, " rows are too few for parts of ", split.train(), ", ",
        split.validation(), " and ", split.test(), " of them"));
  }
  return parts;
}

absl::StatusOr<uint64_t> HeldOutBelow(std::vector<uint64_t> hashes,
                                      double fraction) {
  const size_t rows = hashes.size();
  const auto wanted = static_cast<size_t>(
      std::max<int64_t>(1, std::llround(fraction * static_cast<double>(rows))));
  const auto last = hashes.begin() + std::min(wanted, rows) - 1;
  std::nth_element(hashes.begin(), last, hashes.end());
  const uint64_t held_out = *last;
  const bool some_left =
      std::any_of(hashes.begin(), hashes.end(),
                  [&](uint64_t hash) { return hash > held_out; });
  if (some_left) return held_out;
  return absl::InvalidArgumentError(absl::StrCat(
      "its ", rows, " rows leave nothing to train on when ", fraction,
      " of them, and those equal to them, are held out"));
}

absl::StatusOr<SampleTable> SampleTable::Open(const SourceRows& rows,
                                              const SampleOptions& options,
                                              const ReadRow& read) {
  SampleTable table(options);
  if (options.packing == NONE && options.validation_fraction == 0 &&
      options.split.train() == 0) {
    table.rows_ = static_cast<int64_t>(rows.size());
    return table;
  }
  CacheKey fields;
  fields.Add(rows.key()).Add("rows or pieces").Add(options.Text());
  CAPSTAN_ASSIGN_OR_RETURN(
      CachedFile file,
      OpenCached(
          rows.first_path(), fields.hash(), "samples",
          [&](absl::string_view contents) {
            return table.Take(contents, rows.size());
          },
          [&](CacheWriter* to) { return Write(rows, options, read, to); }));
  table.file_ = std::move(file.file);
  return table;
}

absl::Status SampleTable::Take(absl::string_view contents, size_t rows) {
  Header header;
  if (contents.size() < sizeof(header)) {
    return absl::DataLossError("its end is missing");
  }
  std::memcpy(&header, contents.data(), sizeof(header));
  if (!Fits(header, contents.size())) {
    return absl::DataLossError("it has another number of samples");
  }
  const char* at = contents.data() + sizeof(header);
  const auto next = [&at](uint64_t count, auto* span) {
    using Number =
        std::remove_const_t<std::remove_pointer_t<decltype(span->data())>>;
    *span = absl::MakeConstSpan(reinterpret_cast<const Number*>(at), count);
    at += count * sizeof(Number);
  };
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    next(header[part].begins, &parts_[part].begins);
    next(header[part].pieces, &parts_[part].pieces);
  }
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    next(header[part].items, &parts_[part].items);
  }
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    next(header[part].tokens, &parts_[part].tokens);
    if (AreRight(parts_[part], rows)) continue;
    return absl::DataLossError("it has a sample that can't be");
  }
  return absl::OkStatus();
}

bool SampleTable::AreRight(const Samples& part, size_t rows) const {
  const bool packed = options_.packing != NONE && options_.packing != WRAPPED;
  const bool cut = options_.packing == BEST_FIT_SPLIT;
  if (part.begins.empty() == packed || part.pieces.empty() == cut ||
      (!keeps_tokens() && !part.tokens.empty())) {
    return false;
  }
  if (options_.packing == WRAPPED) return part.items.empty();
  const size_t end = cut ? part.items.size() : rows;
  return (!packed ||
          Rises(part.begins, part.items.size(), part.items.size())) &&
         (!cut || (part.pieces.size() == part.items.size() + 1 &&
                   Rises(part.pieces, part.tokens.size(),
                         static_cast<uint64_t>(options_.max_length)))) &&
         std::all_of(part.items.begin(), part.items.end(),
                     [end](uint32_t item) { return item < end; });
}

int64_t SampleTable::size(Part part) const {
  if (file_ == nullptr) return part == TRAINING ? rows_ : 0;
  const Samples& all = parts_[part];
  if (options_.packing == WRAPPED) {
    // A last token alone would predict nothing.
    const int64_t left = tokens(part) % options_.max_length;
    return tokens(part) / options_.max_length + (left > 1 ? 1 : 0);
  }
  return static_cast<int64_t>(all.begins.empty() ? all.items.size()
                                                 : all.begins.size() - 1);
}

absl::Span<const uint32_t> SampleTable::Items(const Samples& part,
                                              int64_t sample, uint32_t* one) {
  if (!part.begins.empty()) {
    // Each number is read once, here and in Pieces: a process that writes the
    // file can't get between a check and its use.
    const uint64_t begin = part.begins[sample];
    const uint64_t end = part.begins[sample + 1];
    if (begin > end || end > part.items.size()) return {};
    return part.items.subspan(begin, end - begin);
  }
  *one =
      part.items.empty() ? static_cast<uint32_t>(sample) : part.items[sample];
  return absl::MakeConstSpan(one, 1);
}

std::vector<absl::Span<const uint32_t>> SampleTable::Pieces(
    Part part, int64_t sample) const {
  const Samples& all = parts_[part];
  const auto most = static_cast<uint64_t>(options_.max_length);
  if (options_.packing == WRAPPED) {
    return {all.tokens.subspan(sample * most, most)};
  }
  std::vector<absl::Span<const uint32_t>> pieces;
  uint32_t one = 0;
  uint64_t sum = 0;
  const absl::Span<const uint32_t> items = Items(all, sample, &one);
  for (size_t i = 0; i < items.size(); ++i) {
    const uint64_t item = items[i];
    if (item + 1 >= all.pieces.size()) return {};
    const uint64_t from = all.pieces[item];
    const uint64_t to = all.pieces[item + 1];
    if (from >= to || to > all.tokens.size() || to - from > most - sum) {
      return {};
    }
    sum += to - from;
    pieces.push_back(all.tokens.subspan(from, to - from));
  }
  return pieces;
}

absl::Status SampleTable::Check() const {
  return file_ == nullptr ? absl::OkStatus() : file_->Check();
}

}  // namespace capstan::chat
