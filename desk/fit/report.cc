// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/report.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "trainer/metrics/console.h"

namespace capstan::fit {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

// Rows of the table: the best of each strategy and place, so that it shows
// different ones.
constexpr size_t kMostRows = 10;
// Lines about those that don't fit.
constexpr size_t kMostReasons = 4;

std::string WishText(Wish wish) {
  switch (wish) {
    case Wish::kMemory:
      return "least memory first";
    case Wish::kCost:
      return "cheapest first";
    case Wish::kTime:
      break;
  }
  return "fastest first";
}

// "capstan.ddp" is "ddp".
std::string ShortStrategy(const Candidate& one) {
  std::string text = one.Strategy();
  return std::string(absl::StripPrefix(text, "capstan."));
}

std::string RangeText(double low, double high) {
  const std::string from = ShortDuration(low);
  const std::string to = ShortDuration(high);
  const size_t unit = from.find(' ');
  // "61 to 72 ms" where both have the same unit.
  return absl::StrCat(unit != from.npos && absl::EndsWith(to, from.substr(unit))
                          ? from.substr(0, unit)
                          : from,
                      "-", to);
}

double TokensPerSecond(const Answer& answer, const Candidate& one) {
  if (one.seconds <= 0.0) return 0.0;  // unknown
  return static_cast<double>(answer.global_batch) *
         std::max(1.0, answer.tokens) / one.seconds;
}

std::string RanksText(const Candidate& one) {
  return one.hosts > 1 ? absl::StrCat(one.hosts, " x ", one.ranks)
                       : absl::StrCat(one.ranks);
}

std::vector<const Candidate*> Shown(const Answer& answer) {
  std::set<std::tuple<int, int, std::string>> seen;
  std::vector<const Candidate*> shown;
  for (const Candidate& one : answer.candidates) {
    if (!one.refused.empty() || shown.size() == kMostRows ||
        (one.needless && answer.wish != Wish::kMemory)) {
      continue;
    }
    // The next best of what is best is of interest, too.
    if (seen.insert({one.hosts, one.ranks, one.Strategy()}).second ||
        shown.size() < 3) {
      shown.push_back(&one);
    }
  }
  return shown;
}

Row RowOf(const Answer& answer, const Candidate& one, size_t place) {
  Row row = {absl::StrCat(place),
             RanksText(one),
             std::string(absl::StripPrefix(one.choice.strategy, "capstan.")),
             absl::StrCat(one.choice.micro_batch, " x ", one.accumulation),
             one.Checkpointing() == "NONE" ? "-" : one.Checkpointing(),
             absl::StrCat(ShortDuration(one.seconds), one.tried ? "*" : " "),
             RangeText(one.seconds_low, one.seconds_high),
             ShortCount(TokensPerSecond(answer, one)),
             one.memory > 0 ? ShortBytes(one.memory) : "?",
             ClockTime(answer.Total(one))};
  if (answer.machine.price_per_hour > 0.0) {
    row.push_back(absl::StrFormat("%.2f", answer.Cost(one)));
  }
  return row;
}

std::string TableOf(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      // Words on the left, numbers on the right.
      const bool left = i == 2 || i == 4;
      absl::StrAppend(&line, i == 0 ? "" : "  ", left ? "" : pad, row[i],
                      left ? pad : "");
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

// The settings of the strategies in the table.
std::string SettingsText(const std::vector<const Candidate*>& shown) {
  std::string text;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (shown[i]->choice.strategy_sets.empty()) continue;
    absl::StrAppend(&text, i + 1, ": with ",
                    absl::StrJoin(shown[i]->choice.strategy_sets, ", "), "\n");
  }
  return text;
}

std::string MachineText(const Answer& answer) {
  const Machine& machine = answer.machine;
  std::string text = machine.name;
  if (machine.hosts > 1) absl::StrAppend(&text, ": ", machine.hosts, " hosts");
  absl::StrAppend(&text, machine.hosts > 1 ? " of " : ": ", machine.ranks,
                  machine.gpu.empty() ? " CPU rank" : " x ", machine.gpu,
                  machine.gpu.empty() && machine.ranks > 1 ? "s" : "");
  const int64_t memory =
      machine.gpu.empty() ? machine.memory : machine.gpu_memory;
  if (memory > 0) absl::StrAppend(&text, ", ", ShortBytes(memory));
  if (machine.gbit > 0.0) {
    absl::StrAppend(&text, ", ", machine.gbit, " Gbit/s between hosts");
  }
  return text;
}

std::string LeftOutText(const Answer& answer, int columns) {
  std::string text;
  size_t refused = 0;
  std::string examples;
  for (const Candidate& one : answer.candidates) {
    if (one.refused.empty()) continue;
    ++refused;
    if (refused > kMostReasons) continue;
    absl::StrAppend(
        &examples,
        WrappedText(absl::StrCat(ShortStrategy(one), ", ", RanksText(one),
                                 one.all_ranks() == 1 ? " rank" : " ranks",
                                 ", micro-batch ", one.choice.micro_batch, ", ",
                                 one.Checkpointing(), ": ", one.refused),
                    4, columns));
  }
  if (refused > 0) {
    absl::StrAppend(&text, "  ", refused, " of ", answer.candidates.size(),
                    " ways fall out", refused > kMostReasons ? ", such as" : "",
                    "\n", examples);
  }
  for (const LeftOut& one : answer.left_out) {
    absl::StrAppend(
        &text, WrappedText(absl::StrCat(one.what, ": ", one.why), 2, columns));
  }
  return text.empty() ? "" : absl::StrCat("\nleft out\n", text);
}

// What an epoch takes with each packing.
std::string PackingText(const Answer& answer) {
  std::string text =
      "\nan epoch, by train_data.packing (which changes the rows of a step)\n";
  for (const PackedEpoch& one : answer.packings) {
    absl::StrAppendFormat(
        &text, "  %-15s %s\n", one.packing,
        one.seconds > 0.0 ? absl::StrCat(ClockTime(one.seconds), "  ", one.way)
                          : one.way);
  }
  return text;
}

}  // namespace

std::string ConfigText(const Answer& answer, const Candidate& candidate) {
  std::string text = candidate.choice.ConfigText();
  // What the run's config sets is taken back.
  const std::string train = "train {\n";
  const size_t at = text.find(train) + train.size();
  if (candidate.clears_offload) {
    text.insert(at, "  offload { activations: false }\n");
  }
  if (candidate.clears_n) text.insert(at, "  activation_checkpointing_n: 0\n");
  if (answer.machine.here &&
      candidate.ranks != static_cast<int>(answer.own_processes)) {
    absl::StrAppend(&text, "launch { processes: ", candidate.ranks, " }\n");
  }
  return text;
}

std::string AsText(const Answer& answer, int columns) {
  std::string text = absl::StrCat(
      answer.run, " on ", MachineText(answer), "\n", "global batch ",
      answer.global_batch,
      answer.tokens > 0.0
          ? absl::StrCat(" x ", std::llround(answer.tokens), " tokens")
          : std::string(),
      ", ", WithCommas(answer.steps), " steps; ", WishText(answer.wish),
      "\n\n");
  const std::vector<const Candidate*> shown = Shown(answer);
  if (!shown.empty()) {
    Row head = {"",
                "ranks",
                "strategy",
                "micro",
                "recompute",
                "step ",
                "range",
                answer.tokens > 0.0 ? "tokens/s" : "rows/s",
                answer.machine.gpu.empty() ? "memory" : "tensors",
                "total"};
    if (answer.machine.price_per_hour > 0.0) head.push_back("cost");
    std::vector<Row> rows = {head};
    for (const Candidate* one : shown) {
      rows.push_back(RowOf(answer, *one, rows.size()));
    }
    absl::StrAppend(&text, TableOf(rows), SettingsText(shown));
    if (std::any_of(shown.begin(), shown.end(),
                    [](const Candidate* one) { return one->tried; })) {
      absl::StrAppend(&text, "* measured", answer.machine.here ? " here" : "",
                      "\n");
    }
  }
  absl::StrAppend(&text, LeftOutText(answer, columns));
  for (const std::string& note : answer.notes) {
    absl::StrAppend(&text, "\n", WrappedText(note, 0, columns));
  }
  if (!answer.packings.empty()) absl::StrAppend(&text, PackingText(answer));
  const Candidate* const best = answer.best();
  if (best != nullptr) {
    absl::StrAppend(&text,
                    "\nThe first one's lines, for the config or for a file to "
                    "add with a second --config:\n\n",
                    ConfigText(answer, *best));
    if (!answer.machine.here && best->hosts < answer.machine.hosts) {
      absl::StrAppend(&text, "\nStart it on ", best->hosts, " of the ",
                      answer.machine.hosts, " hosts.\n");
    }
  }
  return text;
}

Json AsJson(const Answer& answer) {
  Json ways = Json::array();
  for (const Candidate& one : answer.candidates) {
    Json way = {{"hosts", one.hosts},
                {"ranks", one.ranks},
                {"strategy", one.choice.strategy},
                {"strategy_settings", one.choice.strategy_sets},
                {"micro_batch_size", one.choice.micro_batch},
                {"accumulation", one.accumulation},
                {"activation_checkpointing", one.Checkpointing()},
                {"seconds", one.seconds},
                {"seconds_low", one.seconds_low},
                {"seconds_high", one.seconds_high},
                {"tried", one.tried},
                {"tokens_per_second", TokensPerSecond(answer, one)},
                {"total_seconds", answer.Total(one)},
                {"memory", one.memory},
                {"memory_low", one.memory_low},
                {"memory_high", one.memory_high},
                {"bytes_sent", one.traffic.Of(one.accumulation)},
                {"set", one.Overrides()}};
    if (answer.machine.price_per_hour > 0.0) way["cost"] = answer.Cost(one);
    if (!one.refused.empty()) way["refused"] = one.refused;
    ways.push_back(std::move(way));
  }
  Json left_out = Json::array();
  for (const LeftOut& one : answer.left_out) {
    left_out.push_back({{"what", one.what}, {"why", one.why}});
  }
  const Candidate* const best = answer.best();
  Json json = {{"name", answer.run},
               {"wish", answer.wish == Wish::kTime     ? "time"
                        : answer.wish == Wish::kMemory ? "memory"
                                                       : "cost"},
               {"global_batch_size", answer.global_batch},
               {"tokens_per_row", answer.tokens},
               {"steps", answer.steps},
               {"fits", best != nullptr},
               {"ways", ways},
               {"left_out", left_out},
               {"notes", answer.notes},
               {"machine", AsJson(answer.machine)}};
  for (const PackedEpoch& one : answer.packings) {
    json["packings"].push_back({{"packing", one.packing},
                                {"epoch_seconds", one.seconds},
                                {"way", one.way}});
  }
  if (best != nullptr) json["config"] = ConfigText(answer, *best);
  return json;
}

}  // namespace capstan::fit
