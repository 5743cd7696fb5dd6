// SPDX-License-Identifier: Apache-2.0
//
// What a MemoryPlan says, as text.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/metrics/console.h"

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

using BytesOf = absl::optional<int64_t>(const MemoryPlan& plan);

absl::optional<int64_t> ProcessOf(const MemoryPlan& plan) {
  return plan.process;
}

// Rows below the tensors that are left out if no strategy has any bytes there;
// unset: unknown.
constexpr struct {
  const char* title;
  BytesOf* bytes_of;
} kOptionalRows[] = {
    {"  in an evaluation, at most",
     [](const MemoryPlan& plan) {
       return plan.evaluation > 0 ? absl::make_optional(plan.evaluation)
                                  : absl::nullopt;
     }},
    {"  the process, roughly", ProcessOf},
    {"  in host memory, beside it",
     [](const MemoryPlan& plan) { return absl::make_optional(plan.host); }},
    {"  in a file, mapped",
     [](const MemoryPlan& plan) { return absl::make_optional(plan.file); }},
    {"  copy being saved, on the host",
     [](const MemoryPlan& plan) { return absl::make_optional(plan.snapshot); }},
    {"  mirror, on the host",
     [](const MemoryPlan& plan) { return absl::make_optional(plan.mirror); }},
};

bool AnyHas(const std::vector<PlannedStrategy>& strategies, BytesOf* bytes_of) {
  return std::any_of(strategies.begin(), strategies.end(),
                     [bytes_of](const PlannedStrategy& s) {
                       return bytes_of(s.plan).value_or(0) > 0;
                     });
}

// A line of a table of one column of figures.
void AddRow(absl::string_view title, int64_t bytes, std::string* text) {
  absl::StrAppendFormat(text, "  %-34s %10s\n", title, ShortBytes(bytes));
}

}  // namespace

std::string PlanTable(const std::vector<PlannedStrategy>& strategies,
                      const std::vector<RefusedStrategy>& refused) {
  Grid grid(strategies);
  grid.Row("", [](const PlannedStrategy& s) { return s.name; });
  grid.Row("memory of a rank",
           [](const PlannedStrategy& s) { return s.settings; });
  for (int i = 1; i < kMemoryCategories; ++i) {  // kOther isn't planned
    const auto category = static_cast<MemoryCategory>(i);
    grid.Row(
        absl::StrCat("  ", absl::StrReplaceAll(MemoryCategoryName(category),
                                               {{"_", " "}})),
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
  for (const auto& [title, bytes_of] : kOptionalRows) {
    if (!AnyHas(strategies, bytes_of)) continue;
    grid.Row(title, [of = bytes_of](const PlannedStrategy& s) {
      const absl::optional<int64_t> bytes = of(s.plan);
      return bytes.has_value() ? ShortBytes(*bytes) : "?";
    });
  }
  grid.Row("sent in a step",
           [](const PlannedStrategy& s) { return ShortBytes(s.plan.sent); });
  std::string text = grid.Text();
  absl::StrAppend(&text, "\nMemory is that of the moment when a rank holds ",
                  "most.\n");
  if (AnyHas(strategies, ProcessOf)) {
    absl::StrAppend(
        &text,
        "The process has code, data, copies of the state and blocks "
        "kept for the next step beside its tensors.\n");
  }
  if (!std::all_of(strategies.begin(), strategies.end(),
                   [](const auto& s) { return s.plan.activations_known; })) {
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

std::string HostTable(const MemoryPlan& plan, int ranks, int64_t launcher,
                      int64_t mapped) {
  std::string text = "This machine's memory\n";
  const std::string of =
      absl::StrCat(" of ", ranks, ranks == 1 ? " rank" : " ranks");
  if (plan.process.has_value()) {
    AddRow("processes" + of, ranks * *plan.process, &text);
  } else {
    // On a GPU, or where the model doesn't tell.
    AddRow("offload, copies of the state" + of,
           ranks * (plan.host + plan.snapshot + plan.mirror), &text);
  }
  AddRow("the launcher", launcher, &text);
  AddRow("files that are mapped", mapped, &text);
  return absl::StrCat(text,
                      "Mapped files take what memory there is to spare.\n");
}

std::string DeviceTable(const MemoryPlan& plan, const GpuRoom& room,
                        int ranks) {
  std::string text =
      absl::StrCat("Each of ", ranks, ranks == 1 ? " GPU" : " GPUs", " of ",
                   ShortBytes(room.bytes), "\n");
  const int64_t tensors = Total(plan.at_peak);
  AddRow("tensors", tensors, &text);
  AddRow("CUDA's context and kernels", room.context, &text);
  AddRow("cuBLAS's workspace", room.workspaces, &text);
  if (room.nccl > 0) AddRow("NCCL's buffers", room.nccl, &text);
  AddRow("rounding and fragmentation", room.fragmentation, &text);
  const int64_t left = room.for_tensors() - tensors;
  AddRow(left >= 0 ? "left" : "missing", left >= 0 ? left : -left, &text);
  absl::StrAppend(&text, "Their machine's memory\n");
  AddRow("offloaded", plan.host * ranks, &text);
  AddRow("copies being saved", plan.snapshot * ranks, &text);
  AddRow("mirrors", plan.mirror * ranks, &text);
  return text;
}

}  // namespace capstan
