// SPDX-License-Identifier: Apache-2.0
//
// preview: shows what a run will train on, sample by sample: the text, its
// tokens, and which of them have a label.
#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "inference/load/run_tokenizer.h"
#include "plugins/sdk/dataset.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

// Highlights what is trained on: colour on a terminal, brackets elsewhere.
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
};

// One document of a sample.
struct Document {
  std::vector<int64_t> ids;
  std::vector<bool> trained;

  int64_t trained_count() const {
    return std::count(trained.begin(), trained.end(), true);
  }
};

const int64_t* RowOf(const Batch& batch, const char* name) {
  const auto found = batch.find(name);
  return found == batch.end() ? nullptr
                              : found->second.const_data_ptr<int64_t>();
}

absl::StatusOr<std::vector<Document>> Documents(const DatasetReader& reader,
                                                int64_t sample) {
  Batch batch;
  CAPSTAN_RETURN_IF_ERROR(reader.Read({sample}, &batch));
  const int64_t* const ids = RowOf(batch, kInputIds);
  if (ids == nullptr) {
    return absl::UnimplementedError(
        "this data has no \"input_ids\": only texts can be shown");
  }
  const int64_t* const labels = RowOf(batch, kLabels);
  const int64_t* const positions = RowOf(batch, kPositions);
  std::vector<Document> documents;
  const int64_t length = batch.at(kInputIds).numel();
  for (int64_t i = 0; i < length; ++i) {
    if (i == 0 || (positions != nullptr && positions[i] == 0)) {
      documents.emplace_back();
    }
    Document& document = documents.back();
    // Nothing predicts a document's first token.
    const bool trained = !document.ids.empty() &&
                         (labels == nullptr || labels[i] != kIgnoredTarget);
    document.ids.push_back(ids[i]);
    document.trained.push_back(trained);
  }
  return documents;
}

// The text in runs of trained and untrained tokens, ending with a newline.
std::string Text(const Document& document, const Tokenizer& tokenizer,
                 const Marks& marks) {
  std::string out;
  std::string run;
  const size_t count = document.ids.size();
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    const bool trained = document.trained[begin];
    while (end < count && document.trained[end] == trained) ++end;
    run = PrintableText(tokenizer.Decode(
        absl::MakeConstSpan(document.ids.data() + begin, end - begin)));
    out += marks.Of(trained, run);
  }
  // A bracket after the last newline gets its own line.
  const bool whole_line = !run.empty() && run.back() == '\n' &&
                          (marks.terminal || !document.trained.back());
  return whole_line ? out : out + "\n";
}

// "1:<|im_start|> 722:us 277:er 215:\n ..", with spaces shown as dots.
std::string Tokens(const Document& document, const Tokenizer& tokenizer,
                   int64_t most, const Marks& marks) {
  std::string out;
  const auto count = static_cast<int64_t>(document.ids.size());
  for (int64_t i = 0; i < std::min(count, most); ++i) {
    const std::string piece =
        absl::StrReplaceAll(PrintableText(tokenizer.Decode({document.ids[i]})),
                            {{"\n", "\\n"}, {"\t", "\\t"}, {" ", "\u00b7"}});
    absl::StrAppend(&out, i > 0 ? " " : "",
                    marks.Of(document.trained[i],
                             absl::StrCat(document.ids[i], ":", piece)));
  }
  if (count > most) {
    absl::StrAppend(&out, " .. and ", WithCommas(count - most), " more");
  }
  return out;
}

void ShowSample(int64_t sample, const std::vector<Document>& documents,
                const Tokenizer& tokenizer, int64_t most_tokens,
                const Marks& marks) {
  int64_t tokens = 0;
  int64_t trained = 0;
  for (const Document& document : documents) {
    tokens += static_cast<int64_t>(document.ids.size());
    trained += document.trained_count();
  }
  std::cout << "\n"
            << marks.Title("sample " + WithCommas(sample)) << ": "
            << WithCommas(tokens) << " tokens, " << WithCommas(trained)
            << " trained on";
  if (documents.size() > 1) {
    std::cout << ", " << documents.size() << " documents";
  }
  std::cout << "\n";
  for (size_t d = 0; d < documents.size(); ++d) {
    const Document& document = documents[d];
    if (documents.size() > 1) {
      std::cout << marks.Title(absl::StrCat("document ", d + 1)) << ": "
                << WithCommas(document.ids.size()) << " tokens, "
                << WithCommas(document.trained_count()) << " trained on\n";
    }
    // Skips what merely fills up a pack.
    if (d > 0 && document.trained_count() == 0 &&
        std::count(document.ids.begin(), document.ids.end(), document.ids[0]) ==
            static_cast<int64_t>(document.ids.size())) {
      std::cout << "  (padding)\n";
      continue;
    }
    std::cout << Text(document, tokenizer, marks);
    if (most_tokens == 0) continue;
    std::cout << "tokens: " << Tokens(document, tokenizer, most_tokens, marks)
              << "\n";
  }
}

struct PreviewOptions {
  RunOptions run;
  int64_t samples = 3;
  int64_t tokens = 48;  // per sample, listed individually
};

absl::Status Show(const DatasetReader& reader, const std::string& name,
                  const PreviewOptions& options) {
  if (reader.tokenizer() == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(name, " is no text: there is nothing to show"));
  }
  const Marks marks{Console(STDOUT_FILENO).terminal()};
  std::vector<std::pair<std::string, std::string>> rows = {
      {"train_data", name},
      {"samples", WithCommas(reader.size())},
      {"tokens of one",
       absl::StrCat("at most ", WithCommas(reader.max_sequence_length()))},
      {"trained on", marks.Of(true, "like this")},
  };
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<DatasetReader> held_back,
                           reader.Validation());
  if (held_back != nullptr) {
    rows.insert(rows.begin() + 2, {"held back", WithCommas(held_back->size())});
  }
  std::cout << TableText(rows);
  for (const std::string& note : reader.notes()) {
    std::cout << "  note: " << PrintableText(note) << "\n";
  }
  for (int64_t i = 0; i < std::min(options.samples, reader.size()); ++i) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Document> documents,
                             Documents(reader, i));
    ShowSample(i, documents, *reader.tokenizer(), options.tokens, marks);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Preview(const PreviewOptions& options) {
  PluginHost host(AllFromCaller(options.run.plugin_path));
  const ConfigContext context = DefaultConfigContext(&host);
  if (options.run.configs.empty()) {
    return absl::InvalidArgumentError(
        "no --config is given: name the run whose data is to be shown");
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const LoadedConfig loaded,
      LoadConfig(options.run.configs, options.run.overrides, context));
  if (options.run.print_config) {
    std::cout << PrintConfig(loaded.config);
    return 0;
  }
  if (!loaded.config.has_train_data()) {
    return absl::InvalidArgumentError(
        "the config has no train_data: there is nothing to show");
  }
  // Creates only the data: the model needn't exist yet.
  RunTokenizer tokenizer(TokenizerFolders(loaded.config));
  CAPSTAN_RETURN_IF_ERROR(tokenizer.AddTokens(loaded).status());
  const std::string type = TypeOf(loaded.config.train_data());
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<DatasetReader> reader,
      OpenReader(loaded, "train_data", loaded.config.train_data(), tokenizer,
                 host));
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(
      Show(*reader, type.substr(0, type.rfind('.')), options), "train_data"));
  return 0;
}

// (CLI11's own check prints the range of doubles.)
std::string NegativeProblem(const std::string& number) {
  return number[0] == '-' ? "must not be negative, is " + number : "";
}

void AddFlags(Flags& flags, PreviewOptions* options) {
  AddRunOptions(flags, &options->run);
  flags
      .Add("--samples", &options->samples,
           "How many, from the first on; 0: what there is to know of all")
      .Check(NegativeProblem);
  flags
      .Add("--tokens", &options->tokens,
           "How many of each sample's tokens are listed")
      .Check(NegativeProblem);
}

const RegisterFunction<PreviewOptions> preview(
    50, "preview", "Show a run's first samples, and what of them is trained on",
    AddFlags, Preview);

}  // namespace
}  // namespace capstan
