// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/slurm_lists.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace capstan {
namespace {

constexpr size_t kMost = 65536;

absl::Status Bad(absl::string_view what, absl::string_view list) {
  return absl::InvalidArgumentError(
      absl::StrCat("can't be read as a list of ", what, ", is \"", list, "\""));
}

bool ReadNumber(absl::string_view text, int* number) {
  return text.size() <= 9 &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, number);
}

// "05-07,9" is 05, 06, 07, 9: as many digits as a range's first has.
bool ExpandRanges(absl::string_view ranges, std::vector<std::string>* numbers) {
  for (absl::string_view range : absl::StrSplit(ranges, ',')) {
    const std::vector<absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!ReadNumber(ends.front(), &first) || !ReadNumber(ends.back(), &last) ||
        last < first || numbers->size() + (last - first) >= kMost) {
      return false;
    }
    for (int i = first; i <= last; ++i) {
      const int digits = static_cast<int>(ends.front().size());
      numbers->push_back(absl::StrFormat("%0*d", digits, i));
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandNodeList(
    absl::string_view list) {
  std::vector<std::string> hosts;
  std::vector<std::string> begun = {""};
  for (absl::string_view rest = list;;) {
    const absl::string_view plain = rest.substr(0, rest.find_first_of("[],"));
    for (std::string& name : begun) absl::StrAppend(&name, plain);
    rest.remove_prefix(plain.size());
    const size_t close = rest.find(']');
    if (absl::StartsWith(rest, "[")) {
      std::vector<std::string> numbers;
      if (close == absl::string_view::npos ||
          !ExpandRanges(rest.substr(1, close - 1), &numbers) ||
          begun.size() * numbers.size() > kMost) {
        return Bad("hosts", list);
      }
      std::vector<std::string> longer;
      for (const std::string& name : begun) {
        for (const std::string& number : numbers) {
          longer.push_back(name + number);
        }
      }
      begun = std::move(longer);
      rest.remove_prefix(close + 1);
      continue;
    }
    hosts.insert(hosts.end(), begun.begin(), begun.end());
    const bool more = absl::ConsumePrefix(&rest, ",");
    if (begun[0].empty() || hosts.size() > kMost || (!more && !rest.empty())) {
      return Bad("hosts", list);
    }
    if (!more) return hosts;
    begun = {""};
  }
}

absl::StatusOr<std::vector<int>> ExpandTasksPerNode(absl::string_view list) {
  std::vector<int> counts;
  for (absl::string_view part : absl::StrSplit(list, ',')) {
    const std::vector<absl::string_view> halves =
        absl::StrSplit(part, absl::MaxSplits("(x", 1));
    absl::string_view times = halves.back();
    int tasks = 0;
    int nodes = 1;
    if (!ReadNumber(halves[0], &tasks) ||
        (halves.size() > 1 &&
         (!absl::ConsumeSuffix(&times, ")") || !ReadNumber(times, &nodes))) ||
        nodes < 1 || counts.size() + nodes > kMost) {
      return Bad("tasks on each node", list);
    }
    counts.insert(counts.end(), nodes, tasks);
  }
  return counts;
}

}  // namespace capstan
