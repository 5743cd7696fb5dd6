// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/sample_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "datasets/chat/cached_file.h"

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

// Followed by each part's begins (if packed), then each part's rows.
struct Header {
  uint64_t packed = 0;
  uint64_t samples[Part_ARRAYSIZE] = {};
  uint64_t rows[Part_ARRAYSIZE] = {};

  uint64_t begins(int part) const {
    return packed != 0 ? samples[part] + 1 : 0;
  }
  bool Fits(uint64_t bytes) const {
    uint64_t all = sizeof(Header);
    for (int part = 0; part < Part_ARRAYSIZE; ++part) {
      // So that no sum overflows.
      if (samples[part] >= bytes || rows[part] >= bytes) return false;
      all += begins(part) * sizeof(uint64_t) + rows[part] * sizeof(uint32_t);
    }
    return bytes == all;
  }
};

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

Packs Pack(const SourceRows& rows, const std::vector<uint32_t>& part,
           int64_t max_length) {
  std::vector<uint32_t> lengths;
  lengths.reserve(part.size());
  for (uint32_t row : part) lengths.push_back(rows.At(row).row.tokens);
  Packs packs = PackBestFit(lengths, static_cast<uint32_t>(max_length));
  for (uint32_t& item : packs.items) item = part[item];
  return packs;
}

absl::Status Write(const SourceRows& rows, const SampleOptions& options,
                   CacheWriter* file) {
  CAPSTAN_ASSIGN_OR_RETURN(PartRows parts, SplitRows(rows, options));
  Header header;
  header.packed = options.packing == BEST_FIT ? 1 : 0;
  std::array<std::vector<uint64_t>, Part_ARRAYSIZE> begins;
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    header.rows[part] = header.samples[part] = parts[part].size();
    if (options.packing != BEST_FIT) continue;
    Packs packs = Pack(rows, parts[part], options.max_length);
    parts[part] = std::move(packs.items);
    begins[part] = std::move(packs.begins);
    header.samples[part] = begins[part].size() - 1;
  }
  CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(&header, 1)));
  for (const std::vector<uint64_t>& part : begins) {
    CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(part.data(), part.size())));
  }
  for (const std::vector<uint32_t>& part : parts) {
    CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(part.data(), part.size())));
  }
  return absl::OkStatus();
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

// Each sample has rows, and each row exists.
absl::Status CheckSamples(absl::Span<const uint64_t> begins,
                          absl::Span<const uint32_t> rows, uint64_t samples,
                          size_t all_rows) {
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    if (begins[i] < begins[i + 1]) continue;
    return absl::DataLossError(absl::StrCat("sample ", i, " has no rows"));
  }
  const bool whole = begins.empty()
                         ? samples == rows.size()
                         : begins.front() == 0 && begins.back() == rows.size();
  if (!whole) return absl::DataLossError("its samples aren't its rows");
  for (uint32_t row : rows) {
    if (row < all_rows) continue;
    return absl::DataLossError(absl::StrCat("there is no row ", row));
  }
  return absl::OkStatus();
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
                                              const SampleOptions& options) {
  SampleTable table;
  if (options.packing == NONE && options.validation_fraction == 0 &&
      options.split.train() == 0) {
    table.parts_[TRAINING].samples = static_cast<int64_t>(rows.size());
    return table;
  }
  CacheKey fields;
  fields.Add(rows.key()).Add("three parts").Add(options.Text());
  CAPSTAN_ASSIGN_OR_RETURN(
      const CachedFile file,
      OpenCached(
          rows.first_path(), fields.hash(), "samples",
          [&](absl::string_view contents) {
            return PartsOf(contents, rows.size()).status();
          },
          [&](CacheWriter* to) { return Write(rows, options, to); }));
  table.file_ = file.file;
  CAPSTAN_ASSIGN_OR_RETURN(table.parts_, PartsOf(file.contents, rows.size()));
  return table;
}

absl::StatusOr<SampleTable::Parts> SampleTable::PartsOf(
    absl::string_view contents, size_t rows) {
  Header header;
  if (contents.size() < sizeof(header)) {
    return absl::DataLossError("its end is missing");
  }
  std::memcpy(&header, contents.data(), sizeof(header));
  if (!header.Fits(contents.size())) {
    return absl::DataLossError("it has another number of samples");
  }
  Parts parts;
  const auto* begin =
      reinterpret_cast<const uint64_t*>(contents.data() + sizeof(header));
  uint64_t begins = 0;
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    begins += header.begins(part);
  }
  const auto* row = reinterpret_cast<const uint32_t*>(begin + begins);
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    Samples& samples = parts[part];
    samples.samples = static_cast<int64_t>(header.samples[part]);
    samples.begins = absl::MakeConstSpan(begin, header.begins(part));
    samples.rows = absl::MakeConstSpan(row, header.rows[part]);
    begin += header.begins(part);
    row += header.rows[part];
    CAPSTAN_RETURN_IF_ERROR(
        CheckSamples(samples.begins, samples.rows, header.samples[part], rows));
  }
  return parts;
}

absl::Span<const uint32_t> SampleTable::Rows(Part part, int64_t sample,
                                             uint32_t* one) const {
  const Samples& samples = parts_[part];
  if (!samples.begins.empty()) {
    // Each read once: a process that writes the file can't get between a check
    // and its use.
    const uint64_t begin = samples.begins[sample];
    const uint64_t end = samples.begins[sample + 1];
    if (begin > end || end > samples.rows.size()) return {};
    return samples.rows.subspan(begin, end - begin);
  }
  *one = samples.rows.empty() ? static_cast<uint32_t>(sample)
                              : samples.rows[sample];
  return absl::MakeConstSpan(one, 1);
}

absl::Status SampleTable::Check() const {
  return file_ == nullptr ? absl::OkStatus() : file_->Check();
}

}  // namespace capstan::chat
