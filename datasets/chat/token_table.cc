// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/token_table.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "datasets/chat/cached_file.h"
#include "plugins/sdk/dataset.h"
#include "text/tokens/in_order.h"

namespace capstan::chat {
namespace {

// Rows that a thread tokenizes at a time.
constexpr size_t kRowsAtOnce = 256;

// Followed by each part's pieces and packs (if there are pieces), then each
// part's items, then each part's tokens.
struct Header {
  uint64_t tokens[Part_ARRAYSIZE] = {};
  uint64_t pieces[Part_ARRAYSIZE] = {};
  uint64_t packs[Part_ARRAYSIZE] = {};

  bool Fits(uint64_t bytes) const {
    uint64_t all = sizeof(Header);
    for (int part = 0; part < Part_ARRAYSIZE; ++part) {
      // So that no sum overflows.
      if (tokens[part] >= bytes || pieces[part] >= bytes ||
          packs[part] >= bytes) {
        return false;
      }
      all += sizeof(uint64_t) * (Ends(pieces[part]) + Ends(packs[part])) +
             sizeof(uint32_t) * (pieces[part] + tokens[part]);
    }
    return bytes == all;
  }
  static uint64_t Ends(uint64_t count) { return count == 0 ? 0 : count + 1; }
};

// How a part's tokens are cut.
struct Cut {
  std::vector<uint64_t> pieces;
  Packs packs;
};

Cut CutRows(const SourceRows& rows, const std::vector<uint32_t>& part,
            int64_t max_length) {
  Cut cut;
  std::vector<uint32_t> lengths;
  uint64_t at = 0;
  for (const uint32_t row : part) {
    for (uint64_t left = rows.At(row).row.tokens; left > 0;) {
      const uint64_t here = std::min(left, static_cast<uint64_t>(max_length));
      cut.pieces.push_back(at);
      lengths.push_back(static_cast<uint32_t>(here));
      at += here;
      left -= here;
    }
  }
  if (!part.empty()) cut.pieces.push_back(at);
  cut.packs = PackBestFit(lengths, static_cast<uint32_t>(max_length));
  return cut;
}

// All parts' rows, one part after the other.
absl::Status WriteTokens(const PartRows& parts, const TokenTable::ReadRow& read,
                         CacheWriter* file) {
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
                         (trained ? 0 : TokenTable::kUntrained));
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

absl::Status Write(const SourceRows& rows, const SampleOptions& options,
                   const TokenTable::ReadRow& read, CacheWriter* file) {
  CAPSTAN_ASSIGN_OR_RETURN(const PartRows parts, SplitRows(rows, options));
  Header header;
  std::array<Cut, Part_ARRAYSIZE> cuts;
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    for (const uint32_t row : parts[part]) {
      header.tokens[part] += rows.At(row).row.tokens;
    }
    if (options.packing == WRAPPED) continue;
    cuts[part] = CutRows(rows, parts[part], options.max_length);
    header.pieces[part] = cuts[part].packs.items.size();
    header.packs[part] = cuts[part].packs.begins.size() - 1;
  }
  CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(&header, 1)));
  for (const Cut& cut : cuts) {
    if (cut.pieces.empty()) continue;
    const std::vector<uint64_t>& packs = cut.packs.begins;
    CAPSTAN_RETURN_IF_ERROR(
        file->Write(BytesOf(cut.pieces.data(), cut.pieces.size())));
    CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(packs.data(), packs.size())));
  }
  for (const Cut& cut : cuts) {
    CAPSTAN_RETURN_IF_ERROR(
        file->Write(BytesOf(cut.packs.items.data(), cut.packs.items.size())));
  }
  return WriteTokens(parts, read, file);
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

absl::StatusOr<TokenTable> TokenTable::Open(const SourceRows& rows,
                                            const SampleOptions& options,
                                            const ReadRow& read) {
  TokenTable table;
  table.max_length_ = options.max_length;
  table.wrapped_ = options.packing == WRAPPED;
  CacheKey fields;
  fields.Add(rows.key()).Add("tokens").Add(options.Text());
  CAPSTAN_ASSIGN_OR_RETURN(
      const CachedFile file,
      OpenCached(
          rows.first_path(), fields.hash(), "tokens",
          [&](absl::string_view contents) {
            return PartsOf(contents, options).status();
          },
          [&](CacheWriter* to) { return Write(rows, options, read, to); }));
  table.file_ = file.file;
  CAPSTAN_ASSIGN_OR_RETURN(table.parts_, PartsOf(file.contents, options));
  return table;
}

absl::StatusOr<TokenTable::Parts> TokenTable::PartsOf(
    absl::string_view contents, const SampleOptions& options) {
  Header header;
  if (contents.size() < sizeof(header)) {
    return absl::DataLossError("its end is missing");
  }
  std::memcpy(&header, contents.data(), sizeof(header));
  if (!header.Fits(contents.size())) {
    return absl::DataLossError("it has another number of tokens");
  }
  Parts parts;
  const char* at = contents.data() + sizeof(header);
  const auto next = [&at](uint64_t count, auto* span) {
    using Number =
        std::remove_const_t<std::remove_pointer_t<decltype(span->data())>>;
    *span = absl::MakeConstSpan(reinterpret_cast<const Number*>(at), count);
    at += count * sizeof(Number);
  };
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    next(Header::Ends(header.pieces[part]), &parts[part].pieces);
    next(Header::Ends(header.packs[part]), &parts[part].packs);
  }
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    next(header.pieces[part], &parts[part].items);
  }
  for (int part = 0; part < Part_ARRAYSIZE; ++part) {
    next(header.tokens[part], &parts[part].tokens);
  }
  if (options.packing == WRAPPED) return parts;
  const auto most = static_cast<uint64_t>(options.max_length);
  for (const Tokens& part : parts) {
    const bool right =
        Rises(part.pieces, part.tokens.size(), most) &&
        Rises(part.packs, part.items.size(), part.items.size()) &&
        std::all_of(part.items.begin(), part.items.end(),
                    [&](uint32_t item) { return item < part.items.size(); });
    if (!right) return absl::DataLossError("it has a piece that can't be");
  }
  return parts;
}

int64_t TokenTable::size(Part part) const {
  const Tokens& all = parts_[part];
  if (!wrapped_) {
    return all.packs.empty() ? 0 : static_cast<int64_t>(all.packs.size()) - 1;
  }
  // A last token alone would predict nothing.
  const int64_t left = tokens(part) % max_length_;
  return tokens(part) / max_length_ + (left > 1 ? 1 : 0);
}

std::vector<absl::Span<const uint32_t>> TokenTable::Pieces(
    Part part, int64_t sample) const {
  const Tokens& all = parts_[part];
  const auto most = static_cast<uint64_t>(max_length_);
  if (wrapped_) return {all.tokens.subspan(sample * max_length_, most)};
  // Each number is read once: a process that writes the file can't get between
  // a check and its use.
  const uint64_t begin = all.packs[sample];
  const uint64_t end = all.packs[sample + 1];
  if (begin > end || end > all.items.size()) return {};
  std::vector<absl::Span<const uint32_t>> pieces;
  uint64_t sum = 0;
  for (uint64_t i = begin; i < end; ++i) {
    const uint64_t item = all.items[i];
    if (item >= all.items.size()) return {};
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

}  // namespace capstan::chat
