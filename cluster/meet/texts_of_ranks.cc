// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/texts_of_ranks.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan {
namespace {

// Stores may reject empty values.
std::vector<uint8_t> ToBytes(const std::string& text) {
  const std::string value = absl::StrCat("=", text);
  return std::vector<uint8_t>(value.begin(), value.end());
}

std::string FromBytes(const std::vector<uint8_t>& bytes) {
  return bytes.empty() ? "" : std::string(bytes.begin() + 1, bytes.end());
}

}  // namespace

std::string JoinTexts(const std::vector<std::string>& texts) {
  std::string joined;
  for (size_t begin = 0, end; begin < texts.size(); begin = end) {
    end = begin + 1;
    while (end < texts.size() && texts[end] == texts[begin]) ++end;
    absl::StrAppend(&joined, end - begin, " ", texts[begin].size(), "\n",
                    texts[begin]);
  }
  return joined;
}

absl::StatusOr<std::vector<std::string>> SplitTexts(absl::string_view joined,
                                                    int size) {
  std::vector<std::string> texts;
  while (!joined.empty()) {
    const size_t line_end = joined.find('\n');
    const std::pair<absl::string_view, absl::string_view> line =
        absl::StrSplit(joined.substr(0, line_end), absl::MaxSplits(' ', 1));
    size_t ranks = 0, bytes = 0;
    if (line_end == absl::string_view::npos ||
        !absl::SimpleAtoi(line.first, &ranks) ||
        !absl::SimpleAtoi(line.second, &bytes) || ranks == 0 ||
        ranks > static_cast<size_t>(size) - texts.size() ||
        bytes > joined.size() - line_end - 1) {
      return absl::InvalidArgumentError("rank 0's list of texts is damaged");
    }
    texts.insert(texts.end(), ranks,
                 std::string(joined.substr(line_end + 1, bytes)));
    joined.remove_prefix(line_end + 1 + bytes);
  }
  if (texts.size() != static_cast<size_t>(size)) {
    return absl::InvalidArgumentError("rank 0's list of texts is too short");
  }
  return texts;
}

std::vector<std::string> TextsOfRanks(c10d::Store& store,
                                      const std::string& key, int rank,
                                      int size, const std::string& mine) {
  const auto key_of = [&](int of) { return absl::StrCat(key, "/", of); };
  const std::string all = absl::StrCat(key, "/all");
  if (rank != 0) {
    store.set(key_of(rank), ToBytes(mine));
    absl::StatusOr<std::vector<std::string>> texts =
        SplitTexts(FromBytes(store.get(all)), size);
    if (!texts.ok()) {
      C10_THROW_ERROR(DistStoreError, std::string(texts.status().message()));
    }
    return *std::move(texts);
  }
  std::vector<std::string> keys, texts = {mine};
  for (int other = 1; other < size; ++other) keys.push_back(key_of(other));
  if (!keys.empty()) {
    for (const auto& bytes : store.multiGet(keys)) {
      texts.push_back(FromBytes(bytes));
    }
  }
  store.set(all, ToBytes(JoinTexts(texts)));
  return texts;
}

}  // namespace capstan
