// SPDX-License-Identifier: Apache-2.0
//
// data: shows what a run trains on, row by row: the text, its tokens, which of
// them have a label; and looks for what is wrong with the rows.
#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "desk/data/facts.h"
#include "desk/data/files.h"
#include "desk/data/report.h"
#include "desk/data/samples.h"
#include "host/config/load_config.h"
#include "inference/load/generator.h"
#include "inference/load/run_tokenizer.h"
#include "plugins/sdk/dataset.h"
#include "text/rows/rows.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/progress_bar.h"
#include "trainer/session/run_folders.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

using google::protobuf::Any;

struct DataOptions {
  RunOptions run;
  std::vector<std::string> files;
  std::string model;
  std::string tokenizer;
  int64_t sequence_length = 0;
  int64_t samples = 3;
  int64_t tokens = 48;  // per document, listed one by one
  std::string row;
  std::string page;
  bool json = false;
};

// Of page/page.html.
constexpr absl::string_view kPageBegin = "<!DOCTYPE html>";

// --force replaces a page, and neither rows nor a config.
absl::Status CheckPage(const DataOptions& options) {
  const std::string page = FromCaller(options.page);
  if (options.page.empty() || !PathExists(page)) return absl::OkStatus();
  if (!options.run.force) {
    return absl::AlreadyExistsError(
        absl::StrCat("--page=", options.page,
                     " is there already: name another, or set "
                     "--force to replace it"));
  }
  std::error_code error;
  const std::vector<std::string>& inputs =
      options.files.empty() ? options.run.configs : options.files;
  const bool is_input =
      std::any_of(inputs.begin(), inputs.end(), [&](const std::string& input) {
        return std::filesystem::equivalent(page, FromCaller(input), error);
      });
  std::string begin(kPageBegin.size(), '\0');
  std::ifstream(page).read(&begin[0], begin.size());
  if (!is_input && begin == kPageBegin) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "--page=", options.page,
      " is an input, or no page of this command's: --force doesn't replace it; "
      "name another"));
}

absl::Status CheckOptions(const DataOptions& options) {
  const bool configs = !options.run.configs.empty();
  if (configs == !options.files.empty()) {
    return absl::InvalidArgumentError(
        configs ? "either --config or files can be looked at: give one of them"
                : "nothing to look at is given: name files of data, or the "
                  "--config of a run");
  }
  for (const std::string& file : options.files) {
    if (!absl::StartsWith(file, "-")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("there is no flag ", file, ": see trainer data --help"));
  }
  if (configs && (!options.model.empty() || !options.tokenizer.empty() ||
                  options.sequence_length > 0)) {
    return absl::InvalidArgumentError(
        "--model, --tokenizer and --sequence_length are for files; a config "
        "says it itself: --set train_data.tokenizer=FOLDER, for example");
  }
  return absl::OkStatus();
}

// The config that options.files stand for.
absl::StatusOr<LoadedConfig> ConfigOfFiles(const DataOptions& options,
                                           const ConfigContext& context) {
  CAPSTAN_ASSIGN_OR_RETURN(const FileReadings readings,
                           ReadingsOf(options.files, options.sequence_length));
  if (readings.needs_tokenizer && options.model.empty() &&
      options.tokenizer.empty()) {
    return WithCode(
        absl::InvalidArgumentError(absl::StrCat(
            options.files[0],
            ": its rows become tokens: name the model or tokenizer that reads "
            "them, by --model=FOLDER or --tokenizer=FOLDER")),
        "command/flag");
  }
  LoadedConfig loaded;
  std::string kind;
  for (const std::string& text : readings.configs) {
    CAPSTAN_ASSIGN_OR_RETURN(loaded, ParseConfig(text, "trainer data", context,
                                                 options.run.overrides));
    if (FirstGoodRow(loaded.config.train_data(), &kind).has_value()) break;
  }
  return loaded;
}

// "observations [1, 80, 2], ..": what a sample that is no text consists of.
std::string TensorsText(const Batch& batch) {
  return absl::StrCat(
      "a sample has ",
      absl::StrJoin(batch, ", ", [](std::string* out, const auto& tensor) {
        absl::StrAppend(out, tensor.first, " [",
                        absl::StrJoin(tensor.second.sizes(), ", "), "]");
      }));
}

// Looks at one config's data.
class DataLook {
 public:
  DataLook(const DataOptions& options, const LoadedConfig& loaded,
           PluginHost* host, RunTokenizer* tokenizer)
      : options_(options),
        loaded_(loaded),
        host_(*host),
        tokenizer_(*tokenizer) {}

  absl::StatusOr<DataReport> Report();

 private:
  // Visits the rows of `config`, of the slot `slot`.
  absl::Status Visit(const std::string& slot, const Any& config,
                     const DatasetReader* reader, const RowVisitor& visit);
  absl::Status LookAtTraining();
  absl::Status LookAtValidation();
  absl::Status ShowSamples();
  // Whether --row names it: by its place, or the end of that.
  bool IsWanted(const std::string& place) const {
    return place == options_.row ||
           absl::EndsWith(place, absl::StrCat(":", options_.row)) ||
           absl::EndsWith(place, absl::StrCat(" ", options_.row));
  }

  const DataOptions& options_;
  const LoadedConfig& loaded_;
  PluginHost& host_;
  RunTokenizer& tokenizer_;
  std::unique_ptr<DatasetReader> reader_;
  std::string refused_;  // why a run can't read it
  RowChecks checks_;
  DataReport report_;
};

absl::Status DataLook::Visit(const std::string& slot, const Any& config,
                             const DatasetReader* reader,
                             const RowVisitor& visit) {
  WorkBar bar(absl::StrCat("looking at ", slot), STDERR_FILENO);
  int64_t rows = 0;
  const RowVisitor shown = [&](const RowsOfReader& all, const DataRow& row) {
    bar.Show(row.done, WithCommas(++rows) + " rows");
    return visit(all, row);
  };
  const VisitRowsFunction by_rows = VisitRowsOf(TypeOf(config));
  return by_rows != nullptr
             ? by_rows(tokenizer_.WithNewTokens(config).value(), shown)
             : VisitSamples(*reader, shown);
}

absl::Status DataLook::LookAtTraining() {
  const Any& config = loaded_.config.train_data();
  const bool by_rows = VisitRowsOf(TypeOf(config)) != nullptr;
  absl::StatusOr<std::unique_ptr<DatasetReader>> reader =
      OpenReader(loaded_, "train_data", config, tokenizer_, host_);
  if (reader.ok()) {
    reader_ = *std::move(reader);
    if (reader_->tokenizer() == nullptr) return absl::OkStatus();
  } else if (by_rows) {
    refused_ = std::string(reader.status().message());
  } else {
    return reader.status();
  }
  const auto add = [&](const RowsOfReader& all, const DataRow& row) {
    checks_.Add(all, row);
    const bool wanted =
        !options_.row.empty()
            ? IsWanted(row.place)
            : reader_ == nullptr && row.status.ok() && !row.left_out();
    const auto most = options_.row.empty() ? options_.samples : 1;
    if (by_rows && wanted &&
        static_cast<int64_t>(report_.shown.size()) < most) {
      report_.shown.push_back(ShowRow(all, row, options_.tokens));
    }
    return absl::OkStatus();
  };
  return loaded_.Locate(Visit("train_data", config, reader_.get(), add),
                        "train_data");
}

absl::Status DataLook::LookAtValidation() {
  const auto add = [&](const RowsOfReader&, const DataRow& row) {
    checks_.AddValidation(row);
    return absl::OkStatus();
  };
  const Any& train = loaded_.config.train_data();
  std::unique_ptr<DatasetReader> held_back;
  if (reader_ != nullptr) {
    CAPSTAN_ASSIGN_OR_RETURN(held_back, reader_->Validation());
    CAPSTAN_RETURN_IF_ERROR(tokenizer_.Adopt(*reader_));
  }
  if (held_back != nullptr) {
    report_.held_back = held_back->size();
    // Those of rows are among the rows.
    if (VisitRowsOf(TypeOf(train)) == nullptr && held_back->tokenizer()) {
      CAPSTAN_RETURN_IF_ERROR(VisitSamples(*held_back, add));
    }
  }
  const auto look = [&](const std::string& slot,
                        const Any& config) -> absl::Status {
    std::unique_ptr<DatasetReader> reader;
    if (VisitRowsOf(TypeOf(config)) == nullptr) {
      CAPSTAN_ASSIGN_OR_RETURN(
          reader, OpenReader(loaded_, slot, config, tokenizer_, host_));
      if (reader->tokenizer() == nullptr) return absl::OkStatus();
    }
    return loaded_.Locate(Visit(slot, config, reader.get(), add), slot);
  };
  if (loaded_.config.has_eval_data()) {
    CAPSTAN_RETURN_IF_ERROR(look("eval_data", loaded_.config.eval_data()));
  }
  for (int i = 0; i < loaded_.config.eval_sets_size(); ++i) {
    CAPSTAN_RETURN_IF_ERROR(look(absl::StrCat("eval_sets[", i, "].data"),
                                 loaded_.config.eval_sets(i).data()));
  }
  return absl::OkStatus();
}

absl::Status DataLook::ShowSamples() {
  if (reader_->tokenizer() == nullptr) {
    Batch batch;
    CAPSTAN_RETURN_IF_ERROR(reader_->Read({0}, &batch));
    report_.notes.push_back(TensorsText(batch));
    return absl::OkStatus();
  }
  int64_t first = 0;
  int64_t end = std::min(options_.samples, reader_->size());
  if (!options_.row.empty()) {
    if (!absl::SimpleAtoi(options_.row, &first) || first < 0 ||
        first >= reader_->size()) {
      return absl::NotFoundError(absl::StrCat("there is no sample ",
                                              options_.row, ", only 0 to ",
                                              WithCommas(reader_->size() - 1)));
    }
    end = first + 1;
  }
  for (int64_t i = first; i < end; ++i) {
    CAPSTAN_ASSIGN_OR_RETURN(ShownSample sample,
                             ShowSample(*reader_, i, options_.tokens));
    report_.shown.push_back(std::move(sample));
  }
  return absl::OkStatus();
}

absl::StatusOr<DataReport> DataLook::Report() {
  const std::string type = TypeOf(loaded_.config.train_data());
  report_.title = absl::StrJoin(
      options_.files.empty() ? options_.run.configs : options_.files, ", ");
  report_.reader = PackageOf(type);
  CAPSTAN_RETURN_IF_ERROR(LookAtTraining());
  const absl::Status validation = LookAtValidation();
  // Data that is refused may lack what the evaluation's needs.
  if (!validation.ok() && refused_.empty()) return validation;
  if (reader_ != nullptr) {
    report_.samples = reader_->size();
    report_.max_length = reader_->max_sequence_length();
    report_.notes = reader_->notes();
  }
  if (!options_.row.empty() && VisitRowsOf(type) != nullptr) {
    if (report_.shown.empty()) {
      return absl::NotFoundError(
          absl::StrCat("there is no row ", options_.row,
                       ": name one by its line, or as a finding does"));
    }
  } else if (reader_ != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(loaded_.Locate(ShowSamples(), "train_data"));
  }
  report_.facts = checks_.Finish(refused_);
  return std::move(report_);
}

absl::Status Write(DataReport& report, const DataOptions& options) {
  if (!options.page.empty()) {
    CAPSTAN_RETURN_IF_ERROR(
        ReplaceFile(FromCaller(options.page), ReportPage(report)));
  }
  if (options.json) {
    std::cout << ReportJson(report) << std::endl;
    return absl::OkStatus();
  }
  const Console console(STDOUT_FILENO);
  std::cout << ReportText(report, console.terminal(), console.Columns());
  if (!options.page.empty()) {
    std::cout << "wrote " << PrintableText(options.page) << "\n";
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Data(const DataOptions& given) {
  DataOptions options = given;
  if (options.files.size() == 1 && absl::EndsWith(options.files[0], ".pbtxt")) {
    options.run.configs.swap(options.files);
  }
  CAPSTAN_RETURN_IF_ERROR(WithCode(CheckOptions(options), "command/flag"));
  CAPSTAN_RETURN_IF_ERROR(WithCode(CheckPage(options), "path/exists"));
  PluginHost host(AllFromCaller(options.run.plugin_path));
  const ConfigContext context = DefaultConfigContext(&host);
  LoadedConfig loaded;
  std::vector<std::string> folders;
  if (options.files.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        loaded,
        LoadConfig(options.run.configs, options.run.overrides, context));
    folders = TokenizerFolders(loaded.config);
  } else if (!options.tokenizer.empty() || !options.model.empty()) {
    folders = {!options.tokenizer.empty()
                   ? FromCaller(options.tokenizer)
                   : ModelFolder(FromCaller(options.model), RunFoldersHere())};
    CAPSTAN_RETURN_IF_ERROR(LoadTokenizer(folders[0]).status());
  }
  // Only the data is made: the model needn't exist yet.
  RunTokenizer tokenizer(folders);
  if (!options.files.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(loaded, ConfigOfFiles(options, context));
  }
  if (options.run.print_config) {
    std::cout << PrintConfig(loaded.config);
    return 0;
  }
  if (!loaded.config.has_train_data()) {
    return absl::InvalidArgumentError(
        "the config has no train_data: there is nothing to show");
  }
  CAPSTAN_RETURN_IF_ERROR(tokenizer.AddTokens(loaded).status());
  CAPSTAN_ASSIGN_OR_RETURN(
      DataReport report, DataLook(options, loaded, &host, &tokenizer).Report());
  CAPSTAN_RETURN_IF_ERROR(Write(report, options));
  return report.facts.failed() ? 1 : 0;
}

// (CLI11's own check prints the range of doubles.)
std::string NegativeProblem(const std::string& number) {
  return number[0] == '-' ? "must not be negative, is " + number : "";
}

void AddFlags(Flags& flags, DataOptions* options) {
  AddRunOptions(flags, &options->run, "--config");
  flags.AddRest(&options->files);
  flags
      .Add("--model", &options->model,
           "The model, or runs/NAME, whose tokenizer and template read the "
           "files that are named instead of --config")
      .Type("FOLDER");
  flags
      .Add("--tokenizer", &options->tokenizer,
           "A tokenizer in place of the model's")
      .Type("FOLDER");
  flags
      .Add("--sequence_length", &options->sequence_length,
           "The tokens of a sample of those files")
      .Positive();
  flags
      .Add("--samples", &options->samples, "How many are shown, from the first")
      .Check(NegativeProblem);
  flags
      .Add("--tokens", &options->tokens,
           "How many of the tokens of each are listed")
      .Check(NegativeProblem);
  flags
      .Add("--row", &options->row,
           "Show this row instead: its line, or its place as a finding tells "
           "it; of data that has no rows, the sample")
      .Type("LINE");
  flags.Add("--page", &options->page, "Write all this as one page, too")
      .Type("FILE.html");
  flags.Add("--force", &options->run.force, "Replace the page that is there");
  flags.Add("--json", &options->json, "Print all this as one JSON object");
}

const RegisterFunction<DataOptions> data("data", AddFlags, Data);

}  // namespace
}  // namespace capstan
