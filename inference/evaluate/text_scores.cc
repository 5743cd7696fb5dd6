// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/text_scores.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/status.h"

namespace capstan::evaluate {
namespace {

std::string Mapped(absl::string_view text, utf8proc_int32_t (*of)(int32_t)) {
  std::string mapped;
  while (!text.empty()) {
    utf8proc_int32_t character = 0;
    const utf8proc_ssize_t size = utf8proc_iterate(
        reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
        static_cast<utf8proc_ssize_t>(text.size()), &character);
    if (size < 1) {  // no UTF-8
      mapped.push_back(text[0]);
      text.remove_prefix(1);
      continue;
    }
    utf8proc_uint8_t bytes[4];
    mapped.append(reinterpret_cast<const char*>(bytes),
                  utf8proc_encode_char(of(character), bytes));
    text.remove_prefix(size);
  }
  return mapped;
}

// The words of `text`, as numbers that equal words share.
std::vector<int> Words(absl::string_view text,
                       std::unordered_map<std::string, int>* numbers) {
  std::vector<int> words;
  std::string word;
  const auto end = [&] {
    if (word.empty()) return;
    words.push_back(numbers->emplace(word, static_cast<int>(numbers->size()))
                        .first->second);
    word.clear();
  };
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      word.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
    } else {
      end();
    }
  }
  end();
  return words;
}

int64_t LongestCommonSubsequence(const std::vector<int>& a,
                                 const std::vector<int>& b) {
  // Row by row of the usual table.
  std::vector<int64_t> row(b.size() + 1, 0);
  for (const int word : a) {
    int64_t diagonal = 0;
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t above = row[j];
      row[j] = word == b[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string Lower(absl::string_view text) {
  return Mapped(text, utf8proc_tolower);
}
std::string Upper(absl::string_view text) {
  return Mapped(text, utf8proc_toupper);
}

absl::StatusOr<std::string> Rewritten(absl::string_view text,
                                      const ExactMatchOptions& options) {
  std::string result(text);
  for (const auto& pattern : options.ignore) {
    CAPSTAN_ASSIGN_OR_RETURN(result, pattern->Remove(result));
  }
  if (options.ignore_case) result = Lower(result);
  const auto erase = [&result](bool (*drop)(unsigned char)) {
    result.erase(std::remove_if(result.begin(), result.end(),
                                [drop](char c) { return drop(c); }),
                 result.end());
  };
  if (options.all_punctuation) {
    static const Pattern& punctuation = Pattern::Constant("\\p{P}");
    CAPSTAN_ASSIGN_OR_RETURN(result, punctuation.Remove(result));
  } else if (options.ignore_punctuation) {
    erase(absl::ascii_ispunct);
  }
  if (options.ignore_numbers) erase(absl::ascii_isdigit);
  return result;
}

absl::StatusOr<bool> ExactMatch(absl::string_view text,
                                absl::string_view reference,
                                const ExactMatchOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string a, Rewritten(text, options));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string b, Rewritten(reference, options));
  return a == b;
}

int64_t CountWords(absl::string_view text) {
  static const Pattern& space = Pattern::Constant("\\s+");
  return static_cast<int64_t>(space.FindAll(text).value().size()) + 1;
}

double RougeL(absl::string_view text, absl::string_view reference) {
  std::unordered_map<std::string, int> numbers;
  const std::vector<int> words = Words(text, &numbers);
  const std::vector<int> wanted = Words(reference, &numbers);
  if (words.empty() || wanted.empty()) return 0.0;
  const double common =
      static_cast<double>(LongestCommonSubsequence(words, wanted));
  const double precision = common / static_cast<double>(words.size());
  const double recall = common / static_cast<double>(wanted.size());
  if (precision + recall == 0.0) return 0.0;
  return 2.0 * precision * recall / (precision + recall);
}

}  // namespace capstan::evaluate
