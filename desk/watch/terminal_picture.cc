// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/terminal_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "desk/watch/rank_times.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

constexpr int kRows = 8;
constexpr int kChartLines = kRows + 3;  // with its title and axis
constexpr int kLabel = 10;              // columns of an axis
constexpr int kShownEvents = 8;
constexpr size_t kShownRanks = 16;
constexpr int kColors[] = {34, 31, 32, 35, 33, 36};
constexpr size_t kColorCount = sizeof(kColors) / sizeof(kColors[0]);
// Of runs' points where there are no colours; where runs meet, kMeet.
constexpr absl::string_view kLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr char kMeet = '*';

int ColorOf(size_t run) { return kColors[run % kColorCount]; }
char LetterOf(size_t run) { return kLetters[run % kLetters.size()]; }

std::string Colored(const std::string& text, int color, bool colors) {
  return colors ? absl::StrCat("\x1b[", color, "m", text, "\x1b[0m") : text;
}

// On one line, without what a terminal would obey, cut at `columns` characters.
std::string Line(const std::string& text, int columns) {
  const std::string clean =
      absl::StrReplaceAll(PrintableText(text), {{"\n", " "}, {"\t", " "}});
  int characters = 0;
  for (size_t i = 0; i < clean.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(clean[i]) & 0xc0) != 0x80;
    if (begins && ++characters > columns) return clean.substr(0, i);
  }
  return clean;
}

// How runs are told apart.
enum class Marks { kNone, kColors, kLetters };

// Dots of 2 x 4 a character (Braille), or a letter a character.
class Canvas {
 public:
  Canvas(int columns, int rows)
      : columns_(columns), rows_(rows), cells_(columns * rows) {}

  // In [0, 1] from the lower left corner.
  void Dot(double x, double y, size_t run) {
    constexpr int kBits[4][2] = {{0, 3}, {1, 4}, {2, 5}, {6, 7}};
    const int across = std::clamp(static_cast<int>(x * (2 * columns_ - 1)), 0,
                                  2 * columns_ - 1);
    const int down = std::clamp(static_cast<int>((1.0 - y) * (4 * rows_ - 1)),
                                0, 4 * rows_ - 1);
    Cell& cell = cells_[down / 4 * columns_ + across / 2];
    cell.shared = cell.shared || (cell.dots != 0 && cell.run != run);
    cell.dots |= 1 << kBits[down % 4][across % 2];
    cell.run = run;
  }
  std::string Row(int row, Marks marks) const {
    std::string text;
    for (int i = 0; i < columns_; ++i) {
      const Cell& cell = cells_[row * columns_ + i];
      if (cell.dots == 0) {
        text += ' ';
        continue;
      }
      if (marks == Marks::kLetters) {
        text += cell.shared ? kMeet : LetterOf(cell.run);
        continue;
      }
      // U+2800 + dots in UTF-8.
      std::string character = {static_cast<char>(0xe2),
                               static_cast<char>(0xa0 | cell.dots >> 6),
                               static_cast<char>(0x80 | (cell.dots & 0x3f))};
      text += Colored(character, ColorOf(cell.run), marks == Marks::kColors);
    }
    return text;
  }

 private:
  struct Cell {
    int dots = 0;
    size_t run = 0;
    bool shared = false;  // by several runs
  };
  const int columns_;
  const int rows_;
  std::vector<Cell> cells_;
};

// A curve to draw: its buckets, and those's width.
struct Drawn {
  const Curves* curves;
  const Curves::Series* series;
  size_t run;
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  int64_t last = 1;  // step
};

Range RangeOf(const std::vector<Drawn>& drawn) {
  Range range;
  for (const Drawn& one : drawn) {
    for (const CurveBucket& bucket : one.series->buckets) {
      range.low = std::min(range.low, bucket.mean());
      range.high = std::max(range.high, bucket.mean());
    }
    range.last =
        std::max(range.last,
                 (one.series->buckets.back().at + 1) * one.curves->width() - 1);
  }
  return range;
}

std::string Chart(const std::string& title, const std::vector<Drawn>& drawn,
                  int columns, Marks marks) {
  if (drawn.empty()) return "";
  const Range range = RangeOf(drawn);
  const double height = range.high - range.low;
  Canvas canvas(columns - kLabel - 2, kRows);
  for (const Drawn& one : drawn) {
    for (const CurveBucket& bucket : one.series->buckets) {
      const double step =
          (bucket.at + 0.5) * static_cast<double>(one.curves->width());
      canvas.Dot(step / static_cast<double>(range.last),
                 height > 0.0 ? (bucket.mean() - range.low) / height : 0.5,
                 one.run);
    }
  }
  std::string text = absl::StrCat("\n", title, "\n");
  for (int row = 0; row < kRows; ++row) {
    const std::string label = row == 0 ? absl::StrFormat("%.4g", range.high)
                              : row == kRows - 1
                                  ? absl::StrFormat("%.4g", range.low)
                                  : "";
    absl::StrAppendFormat(
        &text, "%*s |%s\n", kLabel, label,
        absl::StripTrailingAsciiWhitespace(canvas.Row(row, marks)));
  }
  absl::StrAppendFormat(&text, "%*s  0%*s\n", kLabel, "", columns - kLabel - 3,
                        absl::StrCat("step ", WithCommas(range.last)));
  return text;
}

std::string UnreadableText(int64_t lines) {
  return absl::StrCat(WithCommas(lines), lines == 1 ? " line" : " lines",
                      " of metrics.jsonl unreadable");
}

// "running  step 1,200 of 5,000  24 %  0:31 left  loss 2.345  8,020 tokens/s":
// as many of these as `columns` have room for.
std::string Progress(const RunReader& run, int columns) {
  std::vector<std::string> parts = {
      StateText(run), absl::StrCat("step ", WithCommas(run.step()))};
  if (run.max_steps() > 0) {
    absl::StrAppend(&parts.back(), " of ", WithCommas(run.max_steps()));
    parts.push_back(
        absl::StrFormat("%.0f %%", 100.0 * static_cast<double>(run.step()) /
                                       static_cast<double>(run.max_steps())));
  }
  if (const int64_t lines = run.unreadable_lines()) {
    parts.push_back(UnreadableText(lines));
  }
  if (run.state() == RunReader::State::kRunning && run.SecondsLeft() >= 0.0) {
    parts.push_back(absl::StrCat(ClockTime(run.SecondsLeft()), " left"));
  }
  const std::map<std::string, double> latest = run.Latest();
  for (const char* key : {"loss", "eval_loss"}) {
    const auto value = latest.find(key);
    if (value == latest.end()) continue;
    parts.push_back(absl::StrFormat("%s %.4f", key, value->second));
  }
  for (const auto& [key, value] : latest) {
    if (!absl::EndsWith(key, "_per_second") || !std::isfinite(value)) continue;
    parts.push_back(absl::StrCat(WithCommas(std::llround(value)), " ",
                                 key.substr(0, key.find("_per_second")), "/s"));
  }
  std::string text = Line(parts[0], columns);
  for (size_t i = 1; i < parts.size(); ++i) {
    if (text.size() + 2 + parts[i].size() > static_cast<size_t>(columns)) break;
    absl::StrAppend(&text, "  ", parts[i]);
  }
  return text;
}

// A line a rank: its share of lateness as a bar of ten characters.
std::string RanksText(const RunReader& run, int columns) {
  const RankTimeline timeline = TimelineOf(run.ranks());
  if (timeline.rows.empty()) return "";
  std::string text = "\nranks, ms a step\n";
  const std::string late = LateText(run.ranks(), timeline);
  if (!late.empty())
    absl::StrAppend(&text, "  ", Line(late, columns - 2), "\n");
  for (const RankRow& row : timeline.rows) {
    if (static_cast<size_t>(&row - timeline.rows.data()) == kShownRanks) {
      absl::StrAppend(&text, "  .. and ", timeline.rows.size() - kShownRanks,
                      " more\n");
      break;
    }
    const WatchedRank& record = run.ranks().at(row.rank);
    std::string line =
        absl::StrFormat("  %4d %-12.12s", row.rank, record.facts.host);
    // As many parts as there is room for, each whole.
    const auto add = [&](const char* part, const char* name) {
      const auto mean = row.means.find(part);
      // Most objectives have no rollouts.
      if (mean == row.means.end() || mean->second == 0.0) return;
      const std::string more =
          absl::StrFormat("  %s %.1f", name, 1e3 * mean->second);
      if (line.size() + more.size() <= static_cast<size_t>(columns)) {
        line += more;
      }
    };
    for (const char* part : kWorkParts) add(part, part);
    add("exposed", "waits");
    absl::StrAppend(&text, Line(line, columns), "\n");
  }
  return text;
}

// The latest events, in up to `lines` lines.
std::string EventsText(const RunReader& run, int columns, int lines) {
  const auto& events = run.events();
  if (events.empty() || lines < 3) return "";
  std::string text = "\nevents\n";
  const size_t shown =
      std::min<size_t>(events.size(), std::min(lines - 2, kShownEvents));
  for (size_t i = events.size() - shown; i < events.size(); ++i) {
    const WatchedEvent& event = events[i];
    const std::string time =
        event.time > 0.0
            ? absl::FormatTime("%H:%M:%S",
                               absl::UnixEpoch() + absl::Seconds(event.time),
                               absl::LocalTimeZone())
            : "";
    absl::StrAppend(&text,
                    Line(absl::StrFormat("  %8s  step %-8d %-10s %s", time,
                                         event.step, event.kind, event.text),
                         columns),
                    "\n");
  }
  return text;
}

std::string SampleText(const RunReader& run, int columns) {
  if (run.samples().empty()) return "";
  const WatchedSample& sample = run.samples().back();
  return absl::StrCat(
      "\nsample of step ", sample.step, "\n",
      Line(absl::StrCat("  ", sample.prompt, " > ", sample.text), 3 * columns),
      "\n");
}

// The first lines of `text`.
std::string Cut(const std::string& text, int lines) {
  size_t end = 0;
  for (int line = 0; line < lines && end < text.size(); ++line) {
    end = text.find('\n', end) + 1;  // each line has its end
  }
  return text.substr(0, end);
}

int CountLines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

std::string TerminalPicture(const LiveRuns& runs, int columns, int lines,
                            bool colors) {
  columns = std::max(columns, 40);
  constexpr int kWhole = 1 << 20;
  const int width = colors ? columns : kWhole;  // of lines of text
  std::string text;
  size_t index = 0;
  const bool several = runs.size() > 1;
  const Marks marks = colors    ? Marks::kColors
                      : several ? Marks::kLetters
                                : Marks::kNone;
  const std::pair<const char*, const char*> kCharts[] = {
      {"loss", "loss"},
      {"eval_loss", "evaluation loss"},
      {"lr", "learning rate"},
      {"grad_norm", "gradient norm"}};
  std::vector<std::vector<Drawn>> drawn(std::size(kCharts));
  std::string details, sample;
  runs.ForEach([&](const RunReader& run) {
    const size_t number = index++;
    if (marks == Marks::kLetters) {
      absl::StrAppend(&text, std::string(1, LetterOf(number)), ": ");
    }
    absl::StrAppend(
        &text,
        Colored(Line(run.name(), width), ColorOf(number), colors && several),
        "\n  ", Progress(run, width - 2), "\n");
    for (size_t c = 0; c < std::size(kCharts); ++c) {
      const Curves::Series* series = run.curves().Find(kCharts[c].first);
      if (series != nullptr) {
        drawn[c].push_back({&run.curves(), series, number});
      }
    }
    if (several) return;
    const int room = lines - CountLines(text) - kChartLines;
    details = Cut(RanksText(run, width), room);
    details += EventsText(run, width, room - CountLines(details));
    sample = SampleText(run, width);
  });
  // However many runs there are, their losses are seen.
  text = Cut(text, std::max(lines - kChartLines, 2));
  if (marks == Marks::kLetters) {
    details = absl::StrCat("\nin charts a letter is that run, ",
                           std::string(1, kMeet), " several\n");
  }
  const auto add = [&text, lines](const std::string& part) {
    if (CountLines(text) + CountLines(part) <= lines) text += part;
  };
  for (size_t c = 0; c < std::size(kCharts); ++c) {
    add(Chart(kCharts[c].second, drawn[c], columns, marks));
    if (c == 0) add(details);
  }
  // Its text is of up to three lines, in one.
  if (CountLines(text) <= lines - CountLines(sample) - 2) text += sample;
  return text;
}

}  // namespace capstan
