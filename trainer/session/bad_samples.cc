// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/bad_samples.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cluster/comm/agree.h"

namespace capstan {
namespace {

constexpr size_t kMostWords = 300;

// "17 WORDS", a line each.
std::string TextOf(const std::vector<BadSample>& samples) {
  std::string text;
  for (const BadSample& bad : samples) {
    std::string why = bad.why.substr(0, kMostWords);
    std::replace(why.begin(), why.end(), '\n', ' ');
    absl::StrAppend(&text, bad.sample, " ", why, "\n");
  }
  return text;
}

void ParseInto(absl::string_view text, std::map<int64_t, std::string>* all) {
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int64_t sample = 0;
    if (!absl::SimpleAtoi(parts.first, &sample)) continue;
    all->emplace(sample, std::string(parts.second));
  }
}

}  // namespace

absl::Status ShareBadSamples(const char* data,
                             const std::vector<BadSample>& mine,
                             Session* session, std::vector<int64_t>* known) {
  std::map<int64_t, std::string> all;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    for (const std::string& text :
         FromAllRanks(*session->group, TextOf(mine))) {
      ParseInto(text, &all);
    }
    return absl::OkStatus();
  }));
  const TrainState& state = session->state;
  const int64_t most = session->config.train().skip_bad_samples();
  for (const auto& [sample, why] : all) {
    const auto place = std::lower_bound(known->begin(), known->end(), sample);
    if (place != known->end() && *place == sample) continue;
    const auto count = static_cast<int64_t>(state.bad_samples.size() +
                                            state.bad_eval_samples.size());
    if (count >= most) {
      return absl::FailedPreconditionError(absl::StrCat(
          "step ", state.step, ": sample ", sample, " of ", data,
          " can't be read (", why, "), and the run has already passed over ",
          count, " (", absl::StrJoin(*known, ", "),
          "): mend the data, or raise train.skip_bad_samples (now ", most,
          ")"));
    }
    known->insert(place, sample);
    session->Note(absl::StrCat(
        "step ", state.step, ": sample ", sample, " of ", data,
        " can't be read (", why, "): the next one is read in its place; it is ",
        count + 1, " of at most ", most, " (train.skip_bad_samples)"));
  }
  return absl::OkStatus();
}

}  // namespace capstan
