// SPDX-License-Identifier: Apache-2.0
#include "trainer/launcher/slurm_lists.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr size_t kMost = 65536;

absl::Status Bad(absl::string_view what, absl::string_view list) {
  return absl::InvalidArgumentError(
      absl::StrCat("can't be read as a list of ", what, ", is \"", list, "\""));
}

// Splits at commas outside of brackets; false if brackets don't match.
bool SplitOutside(absl::string_view list,
                  std::vector<absl::string_view>* parts) {
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth < 0 || depth > 1) return false;
    if (c != ',' || depth > 0) continue;
    parts->push_back(list.substr(begin, i - begin));
    begin = i + 1;
  }
  return depth == 0;
}

bool IsNumber(absl::string_view text) {
  return !text.empty() && text.size() <= 9 &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// "05-07" is 05, 06, 07: as many digits as the first has.
bool ExpandRange(absl::string_view range, std::vector<std::string>* numbers) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(range, absl::MaxSplits('-', 1));
  const bool one = range.find('-') == absl::string_view::npos;
  const absl::string_view last_text = one ? ends.first : ends.second;
  if (!IsNumber(ends.first) || !IsNumber(last_text)) return false;
  int64_t first = 0;
  int64_t last = 0;
  if (!absl::SimpleAtoi(ends.first, &first) ||
      !absl::SimpleAtoi(last_text, &last) || last < first ||
      last - first >= static_cast<int64_t>(kMost)) {
    return false;
  }
  for (int64_t i = first; i <= last; ++i) {
    std::string number = absl::StrCat(i);
    if (number.size() < ends.first.size()) {
      number.insert(0, ends.first.size() - number.size(), '0');
    }
    numbers->push_back(std::move(number));
  }
  return true;
}

// Appends the names of "rack[1-2]n[0-3]".
bool ExpandName(absl::string_view name, std::vector<std::string>* hosts) {
  if (name.empty()) return false;
  std::vector<std::string> made = {""};
  while (!name.empty()) {
    const size_t open = name.find('[');
    for (std::string& host : made) {
      absl::StrAppend(&host, name.substr(0, open));
    }
    if (open == absl::string_view::npos) break;
    const size_t close = name.find(']', open);
    std::vector<std::string> numbers;
    for (absl::string_view range :
         absl::StrSplit(name.substr(open + 1, close - open - 1), ',')) {
      if (!ExpandRange(range, &numbers)) return false;
    }
    if (made.size() * numbers.size() > kMost) return false;
    std::vector<std::string> longer;
    for (const std::string& host : made) {
      for (const std::string& number : numbers) longer.push_back(host + number);
    }
    made = std::move(longer);
    name.remove_prefix(close + 1);
  }
  hosts->insert(hosts->end(), made.begin(), made.end());
  return hosts->size() <= kMost;
}

// "2(x3)" is three nodes of two tasks.
bool ExpandCount(absl::string_view text, std::vector<int>* counts) {
  int nodes = 1;
  const size_t open = text.find("(x");
  if (open != absl::string_view::npos) {
    absl::string_view times = text.substr(open + 2);
    if (!absl::ConsumeSuffix(&times, ")") || !IsNumber(times) ||
        !absl::SimpleAtoi(times, &nodes)) {
      return false;
    }
    text = text.substr(0, open);
  }
  int tasks = 0;
  if (!IsNumber(text) || !absl::SimpleAtoi(text, &tasks) || nodes < 1 ||
      counts->size() + nodes > kMost) {
    return false;
  }
  counts->insert(counts->end(), nodes, tasks);
  return true;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandNodeList(
    absl::string_view list) {
  const absl::Status bad = Bad("hosts", list);
  std::vector<absl::string_view> names;
  if (!SplitOutside(list, &names)) return bad;
  std::vector<std::string> hosts;
  for (absl::string_view name : names) {
    if (!ExpandName(name, &hosts)) return bad;
  }
  return hosts;
}

absl::StatusOr<std::vector<int>> ExpandTasksPerNode(absl::string_view list) {
  std::vector<int> counts;
  for (absl::string_view part : absl::StrSplit(list, ',')) {
    if (!ExpandCount(part, &counts)) return Bad("tasks on each node", list);
  }
  return counts;
}

}  // namespace capstan
