// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/reporter.h"

#include <unistd.h>

#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/npy.h"
#include "base/status.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/curve.h"
#include "trainer/metrics/generations_log.h"
#include "trainer/metrics/metrics_log.h"
#include "trainer/metrics/progress_bar.h"
#include "trainer/metrics/summary.h"
#include "trainer/metrics/tensorboard_writer.h"

namespace capstan {
namespace {

constexpr char kBold[] = "\x1b[1m";
constexpr char kPlain[] = "\x1b[0m";

// "  acc_action 0.8312" for each.
std::string TaggedText(const TaggedNumbers& tagged) {
  std::string text;
  for (const auto& [tag, value] : tagged) {
    absl::StrAppendFormat(&text, "  %s %.4f", tag.substr(tag.rfind('/') + 1),
                          value);
  }
  return text;
}

// Makes empty and blank texts visible.
std::string ShownText(const std::string& text) {
  if (text.empty()) return "(empty)";
  return absl::StripAsciiWhitespace(text).empty() ? "(white space alone)"
                                                  : PrintableText(text);
}

class ReporterImpl : public Reporter {
 public:
  ReporterImpl(const RunFacts& facts, MetricsLog log,
               GenerationsLog generations,
               std::unique_ptr<TensorBoardWriter> tensorboard)
      : facts_(facts),
        console_(STDOUT_FILENO),
        bar_(&console_, facts),
        log_(std::move(log)),
        generations_(std::move(generations)),
        tensorboard_(std::move(tensorboard)) {}

  void Banner() override {
    bar_.PrintAbove(BannerText(facts_, console_.terminal()));
  }

  void Step(const StepMetrics& metrics) override {
    status_.Update(log_.Step(metrics));
    status_.Update(tensorboard_->Step(metrics));
    bar_.Step(metrics);
  }

  void Eval(int64_t step, double eval_loss,
            const TaggedNumbers& tagged) override {
    status_.Update(log_.Eval(step, eval_loss, tagged));
    TaggedNumbers scalars = {{"eval/loss", eval_loss}};
    scalars.insert(scalars.end(), tagged.begin(), tagged.end());
    status_.Update(tensorboard_->Scalars(step, scalars));
    Note(absl::StrCat(
        absl::StrFormat("step %d  eval loss %.4f", step, eval_loss),
        TaggedText(tagged)));
  }

  void Measured(int64_t step, const Measurement& measurement) override;

  std::vector<std::string> pictures() const override {
    std::vector<std::string> names;
    for (const auto& [name, curves] : curves_) names.push_back(name);
    return names;
  }

  void Evaluating(double done) override { bar_.Evaluating(done); }

  void Generations(int64_t step, const std::string& title,
                   const std::vector<Generation>& generations) override;

  bool HasGenerations(int64_t step) const override {
    return generations_.Has(step);
  }

  void Note(const std::string& line) override {
    bar_.PrintAbove(absl::StrCat(PrintableText(line), "\n"));
  }

  void Table(const std::string& lines) override {
    bar_.PrintAbove(PrintableText(lines));
  }

  void Finish(const RunSummary& summary) override {
    bar_.End();
    status_.Update(tensorboard_->Flush());
    status_.Update(
        ReplaceFile(facts_.output_dir + "/summary.json", SummaryJson(summary)));
    console_.Write(SummaryTable(summary, facts_.output_dir));
  }

  absl::Status status() const override { return status_; }

 private:
  void Show(int64_t step, const std::string& title, const std::string& prompt,
            const std::string& text, bool answer,
            const absl::optional<std::string>& before);

  const RunFacts facts_;
  const Console console_;
  ProgressBar bar_;
  MetricsLog log_;
  GenerationsLog generations_;
  const std::unique_ptr<TensorBoardWriter> tensorboard_;
  // Measured curves and their steps, by name.
  std::map<std::string, std::vector<std::pair<int64_t, MeasuredCurve>>> curves_;
  absl::Status status_;
};

void ReporterImpl::Measured(int64_t step, const Measurement& measurement) {
  if (!measurement.scalars.empty()) {
    status_.Update(log_.Numbers(step, measurement.scalars));
    status_.Update(tensorboard_->Scalars(step, measurement.scalars));
    Note(absl::StrCat("step ", step, TaggedText(measurement.scalars)));
  }
  const std::string folder = facts_.output_dir + "/";
  for (const MeasuredCurve& curve : measurement.curves) {
    status_.Update(
        tensorboard_->Histogram(step, "eval/" + curve.name, curve.values));
    std::vector<std::pair<int64_t, MeasuredCurve>>& drawn = curves_[curve.name];
    drawn.emplace_back(step, curve);
    status_.Update(ReplaceFile(absl::StrCat(folder, curve.name, ".svg"),
                               MeasuredCurvesSvg(drawn)));
  }
  for (const MeasuredArray& array : measurement.arrays) {
    status_.Update(WriteNpy<double>(absl::StrCat(folder, array.name, ".npy"),
                                    array.shape, array.values));
  }
}

void ReporterImpl::Generations(int64_t step, const std::string& title,
                               const std::vector<Generation>& generations) {
  // Indented text is verbatim in Markdown.
  const auto indented = [](const std::string& text) {
    return absl::StrReplaceAll(absl::StrCat("    ", text), {{"\n", "\n    "}});
  };
  std::string markdown;
  for (const Generation& generation : generations) {
    const std::string prompt = PrintableText(generation.prompt);
    const std::string text = ShownText(generation.text);
    absl::optional<std::string> before;
    if (step > 0) before = generations_.Before(generation.prompt);
    if (before.has_value()) before = ShownText(*before);
    status_.Update(generations_.Add(step, generation));
    Show(step, PrintableText(title), prompt, text, generation.answer, before);
    const std::string between = generation.answer ? "\n\n" : "";
    if (before.has_value()) {
      absl::StrAppend(&markdown, "**before training**\n\n",
                      indented(absl::StrCat(prompt, between, *before)), "\n\n");
    }
    absl::StrAppend(&markdown, "**", PrintableText(title), "**\n\n",
                    indented(absl::StrCat(prompt, between, text)), "\n\n");
  }
  while (absl::EndsWith(markdown, "\n")) markdown.pop_back();
  if (!markdown.empty()) status_.Update(tensorboard_->Text(step, markdown));
}

void ReporterImpl::Show(int64_t step, const std::string& title,
                        const std::string& prompt, const std::string& text,
                        bool answer,
                        const absl::optional<std::string>& before) {
  const bool terminal = console_.terminal();
  std::string shown =
      absl::StrCat("--- sample ", title, " (step ", step, ") ---\n",
                   terminal ? kBold : "", prompt, terminal ? kPlain : "");
  if (answer || before.has_value()) absl::StrAppend(&shown, "\n");
  absl::StrAppend(&shown, before.has_value()
                              ? SideBySide("before training", *before, title,
                                           text, console_.Columns())
                              : text);
  if (!absl::EndsWith(shown, "\n")) absl::StrAppend(&shown, "\n");
  bar_.PrintAbove(absl::StrCat(shown, "---\n"));
}

}  // namespace

double PaddingShare(double tokens, double padding) {
  return padding > 0.0 ? padding / (tokens + padding) : 0.0;
}

Reporter::~Reporter() = default;

absl::StatusOr<std::unique_ptr<Reporter>> Reporter::Create(
    const RunFacts& facts) {
  CAPSTAN_ASSIGN_OR_RETURN(MetricsLog log,
                           MetricsLog::Open(facts.output_dir + "/metrics.jsonl",
                                            facts.first_step, facts.unit));
  CAPSTAN_ASSIGN_OR_RETURN(
      GenerationsLog generations,
      GenerationsLog::Open(facts.output_dir + "/generations.jsonl",
                           facts.first_step));
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<TensorBoardWriter> tensorboard,
      TensorBoardWriter::Open(facts.output_dir + "/tensorboard",
                              facts.first_step, facts.unit));
  return std::unique_ptr<Reporter>(std::make_unique<ReporterImpl>(
      facts, std::move(log), std::move(generations), std::move(tensorboard)));
}

}  // namespace capstan
