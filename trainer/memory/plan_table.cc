// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/plan_table.h"

#include <algorithm>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "trainer/metrics/number_text.h"

namespace capstan {
namespace {

// A table; the first column is left-aligned, the others right-aligned.
class Grid {
 public:
  explicit Grid(const std::vector<PlannedStrategy>& strategies)
      : strategies_(strategies), widths_(strategies.size() + 1, 0) {}

  void Row(const std::string& title,
           const std::function<std::string(const PlannedStrategy&)>& cell) {
    std::vector<std::string> row = {title};
    for (const PlannedStrategy& strategy : strategies_) {
      row.push_back(cell(strategy));
    }
    for (size_t i = 0; i < row.size(); ++i) {
      widths_[i] = std::max(widths_[i], row[i].size());
    }
    rows_.push_back(std::move(row));
  }

  std::string Text() const {
    std::string text;
    for (const std::vector<std::string>& row : rows_) {
      std::string line = row[0];
      line.append(widths_[0] - line.size(), ' ');
      for (size_t i = 1; i < row.size(); ++i) {
        line.append(2 + widths_[i] - row[i].size(), ' ');
        line += row[i];
      }
      absl::StrAppend(&text, line, "\n");
    }
    return text;
  }

 private:
  const std::vector<PlannedStrategy>& strategies_;
  std::vector<size_t> widths_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace

std::string CategoryText(MemoryCategory category) {
  return absl::StrReplaceAll(MemoryCategoryName(category), {{"_", " "}});
}

std::string PlanTable(const std::vector<PlannedStrategy>& strategies,
                      const std::vector<RefusedStrategy>& refused) {
  Grid grid(strategies);
  grid.Row("", [](const PlannedStrategy& s) { return s.name; });
  grid.Row("memory of a rank",
           [](const PlannedStrategy& s) { return s.settings; });
  bool all_known = true, any_on_host = false, any_process = false;
  for (const PlannedStrategy& s : strategies) {
    all_known = all_known && s.plan.activations_known;
    any_on_host = any_on_host || s.plan.host > 0;
    any_process = any_process || s.plan.process.has_value();
  }
  for (int i = 1; i < kMemoryCategories; ++i) {  // kOther isn't planned
    const auto category = static_cast<MemoryCategory>(i);
    grid.Row(absl::StrCat("  ", CategoryText(category)),
             [category](const PlannedStrategy& s) {
               if (!s.plan.Knows(category)) {
                 return std::string("?");
               }
               return ShortBytes(s.plan.at_peak[static_cast<int>(category)]);
             });
  }
  grid.Row("  all tensors", [](const PlannedStrategy& s) {
    return ShortBytes(Total(s.plan.at_peak));
  });
  if (any_process) {
    grid.Row("  the process, roughly", [](const PlannedStrategy& s) {
      return s.plan.process.has_value() ? ShortBytes(*s.plan.process) : "?";
    });
  }
  if (any_on_host) {
    grid.Row("  in host memory, beside it",
             [](const PlannedStrategy& s) { return ShortBytes(s.plan.host); });
  }
  grid.Row("sent in a step",
           [](const PlannedStrategy& s) { return ShortBytes(s.plan.sent); });
  std::string text = grid.Text();
  absl::StrAppend(&text, "\nMemory is that of the moment when a rank holds ",
                  "most.\n");
  if (any_process) {
    absl::StrAppend(&text,
                    "The process has code, data and blocks kept for the next "
                    "step beside its tensors.\n");
  }
  if (!all_known) {
    absl::StrAppend(&text, "?: this model doesn't tell; not in the sum.\n");
  }
  for (const RefusedStrategy& strategy : refused) {
    // Most messages already include the name.
    const bool named = absl::StartsWith(strategy.reason, strategy.name);
    absl::StrAppend(&text, "Not for this run: ",
                    named ? "" : absl::StrCat(strategy.name, ": "),
                    strategy.reason, "\n");
  }
  return text;
}

}  // namespace capstan
