// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/range_index.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace capstan {
namespace {

absl::Status Missing(const std::string& kind, const std::string& parameter,
                     int64_t element) {
  return absl::DataLossError(absl::StrFormat(
      "element %d of %s of '%s' is missing", element, kind, parameter));
}

}  // namespace

RangeIndex::RangeIndex(const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    for (const ManifestRange& range : file.ranges) {
      pieces_[{range.kind, range.parameter}].push_back(
          {&file, &range, range.begin, range.length});
    }
  }
  for (auto& [key, pieces] : pieces_) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  }
}

absl::StatusOr<std::vector<RangeIndex::Piece>> RangeIndex::Cover(
    const std::string& kind, const std::string& parameter, int64_t begin,
    int64_t length) const {
  std::vector<Piece> cover;
  const int64_t end = begin + length;
  const auto found = pieces_.find({kind, parameter});
  while (begin < end) {
    const Piece* piece = nullptr;
    if (found != pieces_.end()) {
      const auto after = std::upper_bound(
          found->second.begin(), found->second.end(), begin,
          [](int64_t value, const Piece& p) { return value < p.begin; });
      if (after != found->second.begin()) piece = &*(after - 1);
    }
    if (piece == nullptr || piece->begin + piece->length <= begin) {
      return Missing(kind, parameter, begin);
    }
    const int64_t stop = std::min(end, piece->begin + piece->length);
    cover.push_back({piece->file, piece->range, begin, stop - begin});
    begin = stop;
  }
  return cover;
}

absl::Status RangeIndex::CheckWhole(const std::string& kind,
                                    const std::string& parameter,
                                    int64_t numel) const {
  const auto found = pieces_.find({kind, parameter});
  int64_t next = 0;
  const Piece* before = nullptr;
  if (found != pieces_.end()) {
    for (const Piece& piece : found->second) {
      if (piece.begin > next) return Missing(kind, parameter, next);
      if (piece.begin < next) {
        return absl::DataLossError(absl::StrFormat(
            "element %d of %s of '%s' is stored twice, in %s and %s",
            piece.begin, kind, parameter, before->file->name,
            piece.file->name));
      }
      next += piece.length;
      before = &piece;
    }
  }
  if (next < numel) return Missing(kind, parameter, next);
  return absl::OkStatus();
}

}  // namespace capstan
