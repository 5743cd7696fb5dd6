// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/texts_of_ranks.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstddef>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan {
namespace {

constexpr std::chrono::seconds kLonger{10};

absl::Status Damaged() {
  return absl::InvalidArgumentError("rank 0's list of texts is damaged");
}

// Takes the first line of *text off, which has numbers; empty if it hasn't.
std::vector<size_t> TakeNumbers(absl::string_view* text) {
  const size_t end = text->find('\n');
  if (end == absl::string_view::npos) return {};
  std::vector<size_t> numbers;
  for (const absl::string_view part :
       absl::StrSplit(text->substr(0, end), ' ')) {
    numbers.emplace_back();
    if (!absl::SimpleAtoi(part, &numbers.back())) return {};
  }
  text->remove_prefix(end + 1);
  return numbers;
}

}  // namespace

std::vector<uint8_t> ToStored(absl::string_view text) {
  const std::string value = absl::StrCat("=", text);
  return std::vector<uint8_t>(value.begin(), value.end());
}

std::string FromStored(const std::vector<uint8_t>& value) {
  return value.empty() ? "" : std::string(value.begin() + 1, value.end());
}

std::string JoinTexts(const std::vector<std::string>& texts) {
  std::map<std::string, size_t> index;
  std::string head, all, runs;
  size_t run = 0;
  for (size_t rank = 0; rank < texts.size(); ++rank, ++run) {
    const std::string& text = texts[rank];
    if (rank > 0 && text != texts[rank - 1]) {
      absl::StrAppend(&runs, run, " ", index[texts[rank - 1]], "\n");
      run = 0;
    }
    if (!index.emplace(text, index.size()).second) continue;
    absl::StrAppend(&head, " ", text.size());
    absl::StrAppend(&all, text);
  }
  if (!texts.empty()) {
    absl::StrAppend(&runs, run, " ", index[texts.back()], "\n");
  }
  return absl::StrCat(index.size(), head, "\n", all, runs);
}

absl::StatusOr<std::vector<std::string>> SplitTexts(absl::string_view joined,
                                                    int size) {
  const std::vector<size_t> head = TakeNumbers(&joined);
  if (head.empty() || head[0] != head.size() - 1) return Damaged();
  std::vector<std::string> different;
  for (size_t i = 1; i < head.size(); ++i) {
    if (head[i] > joined.size()) return Damaged();
    different.emplace_back(joined.substr(0, head[i]));
    joined.remove_prefix(head[i]);
  }
  std::vector<std::string> texts;
  while (!joined.empty()) {
    const std::vector<size_t> run = TakeNumbers(&joined);
    if (run.size() != 2 || run[1] >= different.size() ||
        run[0] > static_cast<size_t>(size) - texts.size()) {
      return Damaged();
    }
    texts.insert(texts.end(), run[0], different[run[1]]);
  }
  if (texts.size() != static_cast<size_t>(size)) return Damaged();
  return texts;
}

std::vector<std::string> TextsOfRanks(c10d::Store& store,
                                      const std::string& key, int rank,
                                      int size, const std::string& mine) {
  const auto key_of = [&](int of) { return absl::StrCat(key, "/", of); };
  const std::string all = absl::StrCat(key, "/all");
  if (rank != 0) {
    store.set(key_of(rank), ToStored(mine));
    store.wait({all}, store.getTimeout() + kLonger);
    absl::StatusOr<std::vector<std::string>> texts =
        SplitTexts(FromStored(store.get(all)), size);
    if (!texts.ok()) {
      C10_THROW_ERROR(DistStoreError, std::string(texts.status().message()));
    }
    return *std::move(texts);
  }
  std::vector<std::string> keys, texts = {mine};
  for (int other = 1; other < size; ++other) keys.push_back(key_of(other));
  if (!keys.empty()) {
    for (const auto& bytes : store.multiGet(keys)) {
      texts.push_back(FromStored(bytes));
    }
  }
  store.set(all, ToStored(JoinTexts(texts)));
  return texts;
}

}  // namespace capstan
