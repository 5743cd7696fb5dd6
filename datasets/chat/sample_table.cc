// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/sample_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"

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

using PartRows = std::array<std::vector<uint32_t>, Part_ARRAYSIZE>;

// By validation_fraction, which chooses by content.
absl::StatusOr<PartRows> SplitByHash(const SourceRows& rows, double fraction) {
  PartRows parts;
  if (fraction == 0) {
    parts[TRAINING].resize(rows.size());
    std::iota(parts[TRAINING].begin(), parts[TRAINING].end(), 0);
    return parts;
  }
  std::vector<uint64_t> hashes;
  hashes.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    hashes.push_back(rows.At(i).row.hash);
  }
  CAPSTAN_ASSIGN_OR_RETURN(const uint64_t held_out,
                           HeldOutBelow(hashes, fraction));
  for (size_t i = 0; i < rows.size(); ++i) {
    parts[hashes[i] <= held_out ? VALIDATION : TRAINING].push_back(
        static_cast<uint32_t>(i));
  }
  return parts;
}

// The rows of each part, ascending.
absl::StatusOr<PartRows> SplitRows(const SourceRows& rows,
                                   const Config& config) {
  const Split& split = config.split();
  if (split.train() == 0) {
    return SplitByHash(rows, config.validation_fraction());
  }
  const auto all = static_cast<int64_t>(rows.size());
  const auto count = [all](double fraction) {
    return static_cast<int64_t>(static_cast<double>(all) * fraction);
  };
  const int64_t trained = count(split.train());
  const int64_t validated =
      split.test() == 0 ? all - trained : count(split.validation());
  const uint64_t key = RandomKey(config.seed(), "chat.split");
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

absl::StatusOr<SampleTable> SampleTable::Create(const SourceRows* rows,
                                                const Config& config) {
  SampleTable table(rows, config);
  CAPSTAN_ASSIGN_OR_RETURN(PartRows parts, SplitRows(*rows, config));
  const auto make = [&](Part part) {
    table.parts_[part] = table.SamplesOf(std::move(parts[part]));
  };
  make(config.part());
  if (config.part() == TRAINING) make(VALIDATION);
  return table;
}

SampleTable::Samples SampleTable::SamplesOf(std::vector<uint32_t> rows) const {
  Samples part;
  part.rows = std::move(rows);
  for (const uint32_t row : part.rows) {
    part.tokens += source_->At(row).row.tokens;
    if (packing_ == WRAPPED) part.ends.push_back(part.tokens);
  }
  if (packing_ == BEST_FIT || packing_ == BEST_FIT_SPLIT) {
    Pack(&part);
  }
  return part;
}

void SampleTable::Pack(Samples* part) const {
  const auto most = static_cast<uint64_t>(max_length_);
  const bool cut = CutsRows(packing_);
  std::vector<uint32_t> lengths;
  for (const uint32_t row : part->rows) {
    const uint64_t tokens = source_->At(row).row.tokens;
    for (uint64_t begin = 0; begin < (cut ? tokens : 1); begin += most) {
      lengths.push_back(static_cast<uint32_t>(std::min(tokens - begin, most)));
      if (cut) part->pieces.push_back({row, static_cast<uint32_t>(begin)});
    }
  }
  part->packs = PackBestFit(lengths, static_cast<uint32_t>(most));
  if (cut) return;
  for (uint32_t& item : part->packs.items) item = part->rows[item];
}

int64_t SampleTable::size(Part part) const {
  const Samples& all = parts_[part];
  switch (packing_) {
    case NONE:
      return static_cast<int64_t>(all.rows.size());
    case WRAPPED: {
      // A last token alone would predict nothing.
      const int64_t left = all.tokens % max_length_;
      return all.tokens / max_length_ + (left > 1 ? 1 : 0);
    }
    default:
      return static_cast<int64_t>(all.packs.begins.size()) - 1;
  }
}

std::vector<uint32_t> SampleTable::Rows(Part part, int64_t sample) const {
  if (packing_ == NONE) return {Row(part, sample)};
  const absl::Span<const uint32_t> pack = PackAt(part, sample);
  return {pack.begin(), pack.end()};
}

absl::Span<const uint32_t> SampleTable::PackAt(Part part,
                                               int64_t sample) const {
  const Packs& packs = parts_[part].packs;
  const uint64_t begin = packs.begins[sample];
  return absl::MakeConstSpan(packs.items)
      .subspan(begin, packs.begins[sample + 1] - begin);
}

std::vector<absl::Span<const uint32_t>> SampleTable::Pieces(
    Part part, int64_t sample) const {
  const Samples& all = parts_[part];
  const auto most = static_cast<uint64_t>(max_length_);
  std::vector<absl::Span<const uint32_t>> pieces;
  uint64_t room = most;
  // Of up to `count` tokens. False if the row has changed.
  const auto add = [&](uint32_t row, uint64_t begin, uint64_t count) {
    const SourceRows::Place place = source_->At(row);
    const auto tokens = place.file->index->TokensOf(place.row);
    if (begin >= tokens.size()) return false;
    pieces.push_back(tokens.subspan(begin, count));
    if (pieces.back().size() > room) return false;
    room -= pieces.back().size();
    return true;
  };
  if (packing_ == BEST_FIT_SPLIT) {
    for (const uint32_t item : PackAt(part, sample)) {
      const auto& [row, begin] = all.pieces[item];
      if (!add(row, begin, most)) return {};
    }
    return pieces;
  }
  uint64_t at = sample * most;
  const uint64_t end = std::min(at + most, static_cast<uint64_t>(all.tokens));
  size_t i =
      std::upper_bound(all.ends.begin(), all.ends.end(), at) - all.ends.begin();
  for (; at < end; at = all.ends[i++]) {
    const uint64_t begin = i == 0 ? 0 : all.ends[i - 1];
    if (!add(all.rows[i], at - begin, std::min(all.ends[i], end) - at)) {
      return {};
    }
  }
  return pieces;
}

}  // namespace capstan::chat
