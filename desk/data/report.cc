// SPDX-License-Identifier: Apache-2.0
#include "desk/data/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "trainer/metrics/console.h"

namespace capstan {

// Parts of the page, from page/ (BUILD).
extern const char kDataPageHtml[];
extern const char kDataPageCss[];
extern const char kDataPageJs[];

namespace {

using Json = nlohmann::ordered_json;
using Level = Finding::Level;

// Of a row's length: what is shown, and its name.
constexpr std::pair<double, const char*> kPercentiles[] = {{0.0, "least"},
                                                           {0.5, "median"},
                                                           {0.9, "p90"},
                                                           {0.99, "p99"},
                                                           {1.0, "most"}};

// Highlights on a terminal, or brackets elsewhere.
struct Marks {
  const bool terminal;

  std::string Of(bool trained, const std::string& text) const {
    if (terminal) {
      return absl::StrCat(trained ? "\x1b[1;32m" : "\x1b[2m", text, "\x1b[0m");
    }
    return trained ? absl::StrCat("\u27e6", text, "\u27e7") : text;
  }
  std::string Title(const std::string& text) const {
    return terminal ? absl::StrCat("\x1b[1m", text, "\x1b[0m") : text;
  }
  std::string Of(Level level) const {
    constexpr const char* kColors[] = {"\x1b[32m", "\x1b[33m", "\x1b[1;31m"};
    const std::string name = absl::StrFormat("%-7s", LevelName(level));
    return terminal
               ? absl::StrCat(kColors[static_cast<int>(level)], name, "\x1b[0m")
               : name;
  }
};

// ": user 12, assistant 12"
std::string CountsText(const std::map<std::string, int64_t>& counts) {
  std::string text;
  for (const auto& [name, count] : counts) {
    absl::StrAppend(&text, text.empty() ? ": " : ", ", VisibleText(name), " ",
                    WithCommas(count));
  }
  return text;
}

// Names and values; `like_this` shows what is trained on.
std::vector<std::pair<std::string, std::string>> FactRows(
    DataReport& report, const std::string& like_this) {
  DataFacts& facts = report.facts;
  std::string samples = "none: a run refuses this data";
  if (report.samples > 0) samples = WithCommas(report.samples);
  if (report.max_length > 0) {
    absl::StrAppend(&samples, " of at most ", WithCommas(report.max_length),
                    " tokens");
  }
  if (report.held_back > 0) {
    absl::StrAppend(&samples, ", and ", WithCommas(report.held_back),
                    " held back");
  }
  std::vector<std::pair<std::string, std::string>> rows = {
      {"train_data", report.reader}, {"samples", samples}};
  if (facts.rows == 0) return rows;
  rows.emplace_back("rows", WithCommas(facts.rows) + CountsText(facts.kinds));
  if (facts.turns > 0) {
    rows.emplace_back("turns",
                      WithCommas(facts.turns) + CountsText(facts.roles));
  }
  const double share = 100.0 * static_cast<double>(facts.trained) /
                       static_cast<double>(facts.tokens);
  rows.emplace_back(
      "tokens",
      absl::StrCat(WithCommas(facts.tokens), ", ", WithCommas(facts.trained),
                   absl::StrFormat(" (%.1f %%) trained on", share), like_this));
  rows.emplace_back(
      "tokens a row",
      absl::StrJoin(kPercentiles, ", ", [&](std::string* out, const auto& p) {
        absl::StrAppend(out, WithCommas(facts.Percentile(p.first)), " ",
                        p.second);
      }));
  return rows;
}

// A bar a bin.
std::string LengthsText(DataFacts& facts, int columns) {
  std::string text;
  const std::vector<LengthBin> bins = facts.Bins();
  int64_t most = 1;
  for (const LengthBin& bin : bins) most = std::max(most, bin.rows);
  const int64_t room = std::clamp(columns - 34, 10, 60);
  for (const LengthBin& bin : bins) {
    const int64_t cells = (bin.rows * room + most - 1) / most;
    absl::StrAppend(&text,
                    absl::StrFormat("  %17s %10s",
                                    absl::StrCat(WithCommas(bin.from), " - ",
                                                 WithCommas(bin.to)),
                                    WithCommas(bin.rows)));
    if (cells > 0) text += " ";
    for (int64_t i = 0; i < cells; ++i) text += "\u2588";
    text += "\n";
  }
  return text.empty()
             ? ""
             : absl::StrCat("\n  tokens a row            rows\n", text);
}

std::string DocumentText(const ShownDocument& document, const Marks& marks) {
  std::string text;
  for (const TextRun& run : document.runs) {
    text += marks.Of(run.trained, run.text);
  }
  // A bracket after the last newline gets its own line.
  const bool whole_line = !document.runs.empty() &&
                          !document.runs.back().text.empty() &&
                          document.runs.back().text.back() == '\n' &&
                          (marks.terminal || !document.runs.back().trained);
  if (!whole_line) text += "\n";
  if (document.pieces.empty()) return text;
  absl::StrAppend(&text, "tokens: ",
                  absl::StrJoin(document.pieces, " ",
                                [&](std::string* out, const TextRun& piece) {
                                  *out += marks.Of(piece.trained, piece.text);
                                }));
  const auto more =
      document.tokens - static_cast<int64_t>(document.pieces.size());
  if (more > 0) {
    absl::StrAppend(&text, " .. and ", WithCommas(more), " more");
  }
  return text + "\n";
}

std::string SizeText(int64_t tokens, int64_t trained) {
  return absl::StrCat(WithCommas(tokens), " tokens, ", WithCommas(trained),
                      " trained on");
}

std::string SampleText(const ShownSample& sample, const Marks& marks) {
  std::string text = absl::StrCat("\n", marks.Title(sample.name), ": ");
  const size_t count = sample.documents.size();
  int64_t tokens = sample.padding, trained = 0;
  for (const ShownDocument& document : sample.documents) {
    tokens += document.tokens;
    trained += document.trained;
  }
  if (!sample.why.empty()) {
    absl::StrAppend(&text, VisibleText(sample.why), "\n");
  } else {
    absl::StrAppend(
        &text, SizeText(tokens, trained),
        count > 1 ? absl::StrCat(", ", count, " documents") : "",
        sample.padding > 0
            ? absl::StrCat(", ", WithCommas(sample.padding), " of padding")
            : "",
        "\n");
  }
  for (size_t d = 0; d < count; ++d) {
    const ShownDocument& document = sample.documents[d];
    if (count > 1) {
      absl::StrAppend(
          &text,
          marks.Title(document.name.empty() ? absl::StrCat("document ", d + 1)
                                            : document.name),
          ": ", SizeText(document.tokens, document.trained), "\n");
    }
    text += DocumentText(document, marks);
  }
  return text;
}

// "rows that are cut: 12, first chats.jsonl:17. Raise max_length."
std::string Sentence(const Finding& finding) {
  std::string text = finding.what;
  if (finding.count == 0) return text + ": none";
  if (!finding.first.empty()) {
    absl::StrAppend(&text, ": ", WithCommas(finding.count), ", first ",
                    finding.first);
  }
  if (!finding.why.empty()) {
    absl::StrAppend(&text, ": ", absl::StripSuffix(finding.why, "."));
  }
  if (!finding.advice.empty()) {
    absl::StrAppend(&text, ". ",
                    std::string(1, absl::ascii_toupper(finding.advice[0])),
                    finding.advice.substr(1), ".");
  }
  return absl::StrReplaceAll(VisibleText(text), {{"\n", " "}, {"\t", " "}});
}

std::string FindingsText(const DataFacts& facts, const Marks& marks,
                         int columns) {
  std::string text = "\n";
  int counts[3] = {};
  for (const Finding& finding : facts.findings) {
    ++counts[static_cast<int>(finding.level)];
    const std::string sentence = Sentence(finding);
    absl::StrAppend(&text, "  ", marks.Of(finding.level), "  ",
                    marks.terminal
                        ? absl::StripLeadingAsciiWhitespace(WrappedText(
                              sentence, /*indent=*/11, std::max(columns, 31)))
                        : sentence + "\n");
  }
  return absl::StrCat(text, "\n", counts[2], " failure",
                      counts[2] == 1 ? "" : "s", ", ", counts[1], " warning",
                      counts[1] == 1 ? "" : "s", "\n");
}

Json SampleJson(const ShownSample& sample) {
  Json documents = Json::array();
  for (const ShownDocument& document : sample.documents) {
    Json runs = Json::array();
    for (const TextRun& run : document.runs) {
      runs.push_back({{"text", run.text}, {"trained", run.trained}});
    }
    documents.push_back({{"name", document.name},
                         {"tokens", document.tokens},
                         {"trained_tokens", document.trained},
                         {"text", runs}});
  }
  return {{"name", sample.name},
          {"why", sample.why},
          {"padding", sample.padding},
          {"documents", documents}};
}

Json LengthsJson(DataFacts& facts) {
  Json lengths = Json::object();
  if (facts.lengths.empty()) return lengths;
  for (const auto& [fraction, name] : kPercentiles) {
    lengths[name] = facts.Percentile(fraction);
  }
  Json bins = Json::array();
  for (const LengthBin& bin : facts.Bins()) {
    bins.push_back({{"from", bin.from}, {"to", bin.to}, {"rows", bin.rows}});
  }
  lengths["bins"] = bins;
  return lengths;
}

Json ReportObject(DataReport& report) {
  DataFacts& facts = report.facts;
  Json json = {{"title", report.title},
               {"reader", report.reader},
               {"passed", !facts.failed()},
               {"samples", report.samples},
               {"held_back", report.held_back},
               {"max_length", report.max_length},
               {"rows", facts.rows},
               {"held_back_rows", facts.held_back},
               {"kinds", facts.kinds},
               {"turns", facts.turns},
               {"roles", facts.roles},
               {"tokens", facts.tokens},
               {"trained_tokens", facts.trained},
               {"lengths", LengthsJson(facts)},
               {"findings", Json::array()},
               {"notes", report.notes},
               {"shown", Json::array()}};
  for (const Finding& finding : facts.findings) {
    json["findings"].push_back({{"level", LevelName(finding.level)},
                                {"check", finding.check},
                                {"count", finding.count},
                                {"first", finding.first},
                                {"why", finding.why},
                                {"advice", finding.advice},
                                {"text", Sentence(finding)}});
  }
  for (const ShownSample& sample : report.shown) {
    json["shown"].push_back(SampleJson(sample));
  }
  return json;
}

// Names of files may be any bytes.
std::string AsciiJson(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true,
                   Json::error_handler_t::replace);
}

}  // namespace

std::string ReportText(DataReport& report, bool terminal, int columns) {
  const Marks marks{terminal};
  std::string text =
      TableText(FactRows(report, " " + marks.Of(true, "like this")));
  for (const std::string& note : report.notes) {
    absl::StrAppend(&text, "  note: ", VisibleText(note), "\n");
  }
  text += LengthsText(report.facts, columns);
  for (const ShownSample& sample : report.shown) {
    text += SampleText(sample, marks);
  }
  return text + FindingsText(report.facts, marks, columns);
}

std::string ReportJson(DataReport& report) {
  return AsciiJson(ReportObject(report));
}

std::string ReportPage(DataReport& report) {
  Json json = ReportObject(report);
  json["table"] = FactRows(report, "");
  // One pass: inserted text isn't scanned again. "<" could end the script.
  return absl::StrReplaceAll(
      kDataPageHtml,
      {{"{{STYLE}}", kDataPageCss},
       {"{{JSON}}", absl::StrReplaceAll(AsciiJson(json), {{"<", "\\u003c"}})},
       {"{{PAGE_JS}}", kDataPageJs}});
}

}  // namespace capstan
