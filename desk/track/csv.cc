// SPDX-License-Identifier: Apache-2.0
//
// A CSV file of the run: a row a step, columns united.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/status.h"
#include "desk/track/sink.h"

namespace capstan::track {
namespace {

constexpr char kStep[] = "step";
constexpr char kTime[] = "time";
constexpr char kEvents[] = "events";

// RFC 4180, but for ends of lines, which become spaces: a row is a line.
std::string Field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat(
      "\"",
      absl::StrReplaceAll(text, {{"\"", "\"\""}, {"\n", " "}, {"\r", " "}}),
      "\"");
}

// The fields of a line that Field has made.
std::vector<std::string> FieldsOf(absl::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      // Two within quotes are one, and the second opens them again.
      if (!quoted && i > 0 && line[i - 1] == '"') fields.back() += '"';
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

std::string NumberField(double value) {
  return std::isfinite(value) ? NumberText(value) : "nan";
}

std::string EventsField(const std::vector<Event>& events) {
  return Field(
      absl::StrJoin(events, "; ", [](std::string* out, const Event& event) {
        absl::StrAppend(out, event.kind, event.text.empty() ? "" : ": ",
                        event.text);
      }));
}

// The file itself says how far it is: its last whole row.
class Csv : public Sink {
 public:
  explicit Csv(const std::string& file) : file_(file) {}

  std::string place() const override { return file_; }
  std::string file() const override { return path_; }

  absl::StatusOr<int64_t> Open(const TrackedRun& run) override {
    output_.reset();
    columns_.clear();
    path_ = file_.empty() ? run.folder + "/track/metrics.csv" : file_;
    int64_t last = kNoStep;
    if (run.acknowledged == kNoStep && !file_.empty()) {
      CAPSTAN_RETURN_IF_ERROR(CheckUnused());
    }
    if (run.acknowledged == kNoStep || !PathExists(path_)) {
      CAPSTAN_RETURN_IF_ERROR(Replace({kStep, kTime, kEvents}, ""));
    } else {
      CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path_));
      CAPSTAN_ASSIGN_OR_RETURN(last, GoOn(text));
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        OutputFile output, OutputFile::Open(path_, OutputFile::Start::kAtEnd));
    output_.emplace(std::move(output));
    return last;
  }

  absl::Status Send(const std::vector<Row>& rows) override {
    std::vector<std::string> columns = columns_;
    for (const Row& row : rows) {
      for (const auto& [name, value] : row.metrics) {
        if (std::find(columns.begin(), columns.end(), name) == columns.end()) {
          columns.push_back(name);
        }
      }
    }
    if (columns != columns_) CAPSTAN_RETURN_IF_ERROR(Widen(columns));
    std::string text;
    for (const Row& row : rows) AppendRow(row, &text);
    return output_->Append(text);
  }

 private:
  // What the user names may be anything, or another run's.
  absl::Status CheckUnused() const {
    if (!PathExists(path_)) return absl::OkStatus();
    CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path_));
    // The columns alone: of a tracker that was killed at its start.
    const bool empty = text.empty() || (absl::StartsWith(text, kStep) &&
                                        text.find('\n') + 1 == text.size());
    if (empty) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("--file: ", path_,
                     " is there already, and nothing says that it is this "
                     "run's: remove it, or name another file"));
  }

  // Reads the columns and drops a row that was cut; returns the last step.
  absl::StatusOr<int64_t> GoOn(const std::string& text) {
    const size_t header = text.find('\n');
    const size_t end = text.rfind('\n');
    int64_t last = kNoStep;
    if (header != std::string::npos) {
      columns_ = FieldsOf(absl::string_view(text).substr(0, header));
    }
    if (columns_.empty() || columns_[0] != kStep) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_,
                       ": isn't a file that `track` wrote; remove it, or name "
                       "another one with --file"));
    }
    if (end > header) {
      const size_t begin = text.rfind('\n', end - 1) + 1;
      const std::string row = text.substr(begin, end - begin);
      if (!absl::SimpleAtoi(row.substr(0, row.find(',')), &last)) {
        return absl::DataLossError(
            absl::StrCat(path_, ": its last row has no step; remove the file"));
      }
    }
    if (end + 1 < text.size()) {
      CAPSTAN_RETURN_IF_ERROR(ReplaceFile(path_, text.substr(0, end + 1)));
    }
    return last;
  }

  absl::Status Replace(const std::vector<std::string>& columns,
                       const std::string& rows) {
    std::vector<std::string> fields;
    for (const std::string& column : columns) fields.push_back(Field(column));
    columns_ = columns;
    return ReplaceFile(path_,
                       absl::StrCat(absl::StrJoin(fields, ","), "\n", rows));
  }

  // The rows so far get empty fields.
  absl::Status Widen(const std::vector<std::string>& columns) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path_));
    const std::string more(columns.size() - columns_.size(), ',');
    const std::string rows = absl::StrReplaceAll(
        text.substr(text.find('\n') + 1), {{"\n", absl::StrCat(more, "\n")}});
    CAPSTAN_RETURN_IF_ERROR(Replace(columns, rows));
    CAPSTAN_ASSIGN_OR_RETURN(
        OutputFile output, OutputFile::Open(path_, OutputFile::Start::kAtEnd));
    output_.emplace(std::move(output));
    return absl::OkStatus();
  }

  void AppendRow(const Row& row, std::string* text) const {
    std::vector<std::string> fields;
    for (const std::string& column : columns_) {
      if (column == kStep) {
        fields.push_back(absl::StrCat(row.step));
      } else if (column == kTime) {
        fields.push_back(NumberField(row.time));
      } else if (column == kEvents) {
        fields.push_back(EventsField(row.events));
      } else {
        const absl::optional<double> value = row.Get(column);
        fields.push_back(value.has_value() ? NumberField(*value) : "");
      }
    }
    absl::StrAppend(text, absl::StrJoin(fields, ","), "\n");
  }

  const std::string file_;
  std::string path_;
  std::vector<std::string> columns_;
  absl::optional<OutputFile> output_;
};

}  // namespace

std::unique_ptr<Sink> MakeCsv(const SinkOptions& options) {
  return std::make_unique<Csv>(options.file);
}

}  // namespace capstan::track
