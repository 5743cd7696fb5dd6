// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/forgotten_rows.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/error_code.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr char kField[] = "forgotten_rows";

// The first name of what says which rows a run reads, and in what order, that
// isn't the same in both; "": none.
std::string OtherOrder(const RunIdentity& earlier, const RunIdentity& mine) {
  for (const auto& [a, b] :
       {std::pair(&earlier, &mine), std::pair(&mine, &earlier)}) {
    for (const auto& [name, value] : *a) {
      if (name != "train.seed" && name != "batch.group_by_length" &&
          name != "tokenizer" && !absl::StartsWith(name, "train_data")) {
        continue;
      }
      const auto found = b->find(name);
      if (found == b->end() || found->second != value) return name;
    }
  }
  return "";
}

}  // namespace

std::set<int64_t> ForgottenRows(const Train& train) {
  return {train.forgotten_rows().begin(), train.forgotten_rows().end()};
}

std::set<int64_t> ForgottenRows(const RunIdentity& identity) {
  std::set<int64_t> rows;
  for (const auto& [name, value] : identity) {
    int64_t row = 0;
    if (IsForgottenRow(name) && absl::SimpleAtoi(value, &row)) rows.insert(row);
  }
  return rows;
}

bool IsForgottenRow(const std::string& name) {
  return absl::StartsWith(name, absl::StrCat("train.", kField, "["));
}

absl::Status CheckForgotten(const Train& train, const RunParts& parts) {
  const std::set<int64_t> rows = ForgottenRows(train);
  if (rows.empty()) return absl::OkStatus();
  if (parts.objective->has_rollouts()) {
    return FieldError(
        kField,
        "doesn't go with an objective with rollouts: it trains on what the "
        "model has made of several rows together; leave the row out of the "
        "data, and train from the beginning");
  }
  if (train.skip_bad_samples() > 0) {
    return FieldError(kField,
                      "doesn't go with skip_bad_samples, which may read such a "
                      "row in the place of another: leave one of them out");
  }
  const int64_t size = parts.train_data->size();
  if (!parts.train_data->draws_anew() && *rows.rbegin() >= size) {
    return FieldError(
        kField, absl::StrCat("train_data has no row ", *rows.rbegin(),
                             ", but those from 0 to ", size - 1,
                             ": name it as `trainer who` does, \"sample 17\""));
  }
  if (static_cast<int64_t>(rows.size()) < size) return absl::OkStatus();
  return FieldError(kField, "names all rows of train_data: leave some");
}

std::vector<RowUse> UsesOf(const std::set<int64_t>& rows,
                           const DataOrder& order, int64_t end) {
  constexpr int64_t kAtOnce = 4096;
  std::vector<RowUse> uses;
  SampleSequence sequence(order);
  std::vector<int64_t> samples;
  for (int64_t begin = 0; begin < end && !rows.empty(); begin += kAtOnce) {
    samples.resize(std::min(kAtOnce, end - begin));
    sequence.At(begin, absl::MakeSpan(samples));
    for (size_t i = 0; i < samples.size(); ++i) {
      if (rows.count(samples[i]) == 0) continue;
      uses.push_back({samples[i], begin + static_cast<int64_t>(i)});
    }
  }
  return uses;
}

absl::Status CompareForgotten(const std::string& checkpoint,
                              const RunIdentity& earlier,
                              const RunIdentity& mine, const DataOrder& order,
                              int64_t samples) {
  const std::set<int64_t> was = ForgottenRows(earlier);
  const std::set<int64_t> is = ForgottenRows(mine);
  std::set<int64_t> changed;
  std::set_symmetric_difference(was.begin(), was.end(), is.begin(), is.end(),
                                std::inserter(changed, changed.end()));
  const std::string other = OtherOrder(earlier, mine);
  if (!changed.empty() && !other.empty() && samples > 0) {
    return WithCode(
        absl::FailedPreconditionError(absl::StrCat(
            "train.forgotten_rows: ", other, " isn't that of the run in ",
            checkpoint,
            ", so that which rows that has trained on can't be told: change "
            "the list or ",
            other, ", not both at once")),
        "run/changed");
  }
  const std::vector<RowUse> uses = UsesOf(changed, order, samples);
  if (uses.empty()) return absl::OkStatus();
  const int64_t row = uses.front().row;
  return WithCode(
      absl::FailedPreconditionError(absl::StrCat(
          "train.forgotten_rows: the run in ", checkpoint, " has ",
          was.count(row) > 0 ? "passed over" : "trained on", " row ", row,
          ", which this one ", is.count(row) > 0 ? "forgets" : "doesn't forget",
          ": restore the old list",
          is.count(row) > 0 ? ", or have `trainer forget` go on from before "
                              "the row's first use"
                            : "")),
      "run/changed");
}

}  // namespace capstan
