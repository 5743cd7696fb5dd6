// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/signals.h"
#include "desk/generate/model_flags.h"
#include "desk/generate/text_view.h"
#include "desk/generate/unmasking_picture.h"
#include "inference/decode/prompt.h"
#include "inference/decode/texts.h"
#include "inference/load/generator.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/lib/generation_config.h"
#include "plugins/sdk/token_model.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// A line of --output: {"prompt": TEXT or [MESSAGE, ..], "text": ..}, with
// U+FFFD for invalid UTF-8.
std::string OutputRow(const Prompt& prompt, const std::string& text) {
  const Json given = prompt.messages.empty()
                         ? Json(prompt.text)
                         : ParseJson<Json>(prompt.messages_json);
  const Json row = {{"prompt", given}, {"text", text}};
  return absl::StrCat(JsonText(row), "\n");
}

// Each has a cache and logits of its own.
constexpr int64_t kMostBeams = 1024;

// So many for each prompt can still be counted.
constexpr int64_t kMostSequences = 1'000'000'000;

constexpr int64_t kDefaultBatch = 8;

struct GenerateOptions : SamplingOptions {
  absl::optional<std::string> prompt;
  std::vector<int64_t> prompt_ids;
  // A file of prompts, one per line (ReadPrompts); "-": standard input.
  std::string input;
  std::string output;  // file for prompts and texts; empty: print
  int64_t batch_size = kDefaultBatch;  // texts at once, with `output`
  int64_t sequences = 1;               // texts a prompt
  absl::optional<int64_t> beams;
  absl::optional<double> length_penalty;
  std::string picture;  // of the order in which one text was unmasked
};

absl::Status CheckOptions(const GenerateOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(options.Check());
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(options.sequences <= kMostSequences, "--sequences",
                 absl::StrCat("at most ", kMostSequences), options.sequences));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(options.batch_size <= kMostBatch, "--batch_size",
                 absl::StrCat("at most ", kMostBatch), options.batch_size));
  const int given = (options.prompt.has_value() ? 1 : 0) +
                    (options.prompt_ids.empty() ? 0 : 1) +
                    (options.input.empty() ? 0 : 1);
  if (given > 1 || (given == 0 && isatty(STDIN_FILENO) != 0)) {
    return absl::InvalidArgumentError(
        "give one of --prompt=TEXT, --prompt_ids=1,2,3 and --input=FILE");
  }
  if (!options.prompt_ids.empty() &&
      (!options.stop.empty() || options.sequences > 1)) {
    return FieldError(options.stop.empty() ? "--sequences" : "--stop",
                      "is for texts: it doesn't go with --prompt_ids");
  }
  if (options.output.empty()) {
    if (options.batch_size == kDefaultBatch) return absl::OkStatus();
    return FieldError("--batch_size",
                      "is without effect without --output, as texts are shown "
                      "one by one: name a file by it, or leave this out");
  }
  if (!options.prompt_ids.empty()) {
    return FieldError("--output", "holds texts: it isn't for --prompt_ids");
  }
  if (PathExists(FromCaller(options.output))) {
    return FieldError(
        "--output",
        absl::StrCat(options.output, " is there already; name another file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Prompt>> PromptsOf(const GenerateOptions& options) {
  if (!options.prompt_ids.empty()) return std::vector<Prompt>();
  if (options.prompt.has_value()) {
    return std::vector<Prompt>{{"--prompt", *options.prompt, {}}};
  }
  if (!options.input.empty() && options.input != "-") {
    return ReadPrompts(FromCaller(options.input));
  }
  absl::StatusOr<std::vector<Prompt>> prompts = ReadPrompts("-");
  if (prompts.ok() || !options.input.empty()) return prompts;
  return Annotate(prompts.status(),
                  "give --prompt=TEXT, --prompt_ids=1,2,3 or --input=FILE");
}

absl::Status CheckTemplateFlags(const GenerateOptions& options,
                                const std::vector<Prompt>& prompts) {
  const char* const flag = !options.chat_template.empty() ? "--template"
                           : !options.chat_template_kwargs.empty()
                               ? "--chat_template_kwargs"
                               : nullptr;
  if (flag == nullptr ||
      std::any_of(prompts.begin(), prompts.end(), [](const Prompt& prompt) {
        return !prompt.messages.empty();
      })) {
    return absl::OkStatus();
  }
  return FieldError(flag,
                    "is for conversations, and no prompt is one: give rows "
                    "{\"messages\": [..]} with --input, or leave it out");
}

// Writes the texts of each of `tasks`, as many as it gets.
absl::Status WriteFile(const std::vector<Task>& tasks,
                       const GenerateOptions& options, Writer writer) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HiddenFile> file,
                           HiddenFile::Create(FromCaller(options.output)));
  const Console console(STDOUT_FILENO);
  // A signal keeps the finished texts.
  InstallStopHandlers(SecondSignal::kEndsProcess);
  RanksHaveMet();
  writer.sample.stop = [] { return StopRequested() != 0; };
  const bool search = writer.searches();
  const size_t sequences = static_cast<size_t>(writer.sequences);
  const size_t all = tasks.size() * sequences;
  size_t done = 0, cut_off = 0;
  while (done < all) {
    if (console.terminal()) {
      console.Write(absl::StrCat("\r\x1b[K", done, " of ", all));
    }
    const size_t end =
        std::min<size_t>(all, done + (search ? sequences : options.batch_size));
    std::vector<Task> batch;
    for (size_t i = done; i < end; ++i) batch.push_back(tasks[i / sequences]);
    const absl::StatusOr<Texts> texts =
        search ? SearchTexts(batch[0], writer)
               : SampleTexts(batch, options.seed + done, writer);
    if (absl::IsCancelled(texts.status())) break;
    if (!texts.ok()) return Annotate(texts.status(), batch[0].prompt->place);
    for (size_t i = 0; i < texts->size(); ++i) {
      if (IsCutOff(batch[i], writer, (*texts)[i])) ++cut_off;
      CAPSTAN_RETURN_IF_ERROR(file->Write(
          OutputRow(*batch[i].prompt, TextOf(batch[i], writer, (*texts)[i]))));
    }
    done = end;
  }
  if (done == 0) {
    return absl::CancelledError("stopped before the first text was done");
  }
  CAPSTAN_RETURN_IF_ERROR(file->Close());
  if (done < all) {
    return absl::CancelledError(absl::StrCat(
        "stopped; ", options.output, " has ", done, " of ", all, " texts"));
  }
  console.Write(absl::StrCat(console.terminal() ? "\r\x1b[K" : "", "wrote ",
                             PrintableText(options.output), ": ", all,
                             all == 1 ? " text\n" : " texts\n"));
  if (cut_off > 0) {
    std::cerr << "note: " << cut_off
              << (cut_off == 1 ? " of them ends" : " of them end")
              << " at the model's "
              << writer.generator.model->token_model()->max_positions()
              << " positions\n";
  }
  return absl::OkStatus();
}

// Printed before the text.
std::string Heading(const Prompt& prompt) {
  return PrintableText(
      prompt.messages.empty()
          ? prompt.text
          : absl::StrCat("> ", prompt.messages.back().content, "\n"));
}

// Writes the text as its tokens come. `sample` is the writer's with the text's
// seed.
absl::Status WriteInOrder(const Task& task, const Writer& writer,
                          SampleOptions sample) {
  StoppedText stopped(writer.stops);
  const bool answer = !task.prompt->messages.empty();
  const std::vector<int64_t> stops = StopsOf(task, writer.generator);
  std::cout << Heading(*task.prompt) << std::flush;
  sample.on_token = [&](int64_t token) {
    // End-of-turn tokens aren't part of the answer.
    if (answer && std::find(stops.begin(), stops.end(), token) != stops.end()) {
      return;
    }
    std::cout << stopped.Add(writer.generator.tokenizer->Decode(
                     absl::MakeSpan(&token, 1)))
              << std::flush;
  };
  const TokenModel& model = *writer.generator.model->token_model();
  sample.ended = [&](absl::Span<const int64_t> text) {
    return stopped.ended() ||
           static_cast<int64_t>(text.size()) >= MostTokens(model);
  };
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> text,
                           writer.generator.Sample(task.ids, sample));
  std::cout << stopped.Finish() << std::endl;
  if (IsCutOff(task, writer, text)) TellCutOff(model);
  return absl::OkStatus();
}

// Redraws it as its tokens are unmasked. `picture_file` is for an
// UnmaskingPicture; empty: none.
absl::Status WriteInAnyOrder(const Task& task, const Writer& writer,
                             SampleOptions sample,
                             const std::string& picture_file) {
  const Generator& generator = writer.generator;
  const TokenModel* const model = generator.model->token_model();
  MaskedTextView view(STDOUT_FILENO, generator.tokenizer.get(),
                      model->mask_token(), StopsOf(task, generator),
                      Heading(*task.prompt), writer.stops);
  UnmaskingPicture picture(model->mask_token(), task.ids.size());
  view.Show({});
  sample.on_text = [&](absl::Span<const int64_t> text) {
    view.Show(text.subspan(task.ids.size()));
    picture.Note(text);
  };
  const absl::StatusOr<std::vector<int64_t>> text =
      generator.Sample(task.ids, sample);
  view.Finish(text.ok() ? absl::MakeConstSpan(*text).subspan(task.ids.size())
                        : absl::Span<const int64_t>());
  CAPSTAN_RETURN_IF_ERROR(text.status());
  if (picture_file.empty()) return absl::OkStatus();
  return WriteWholeFile(picture_file, picture.Svg(*text, *generator.tokenizer));
}

// The best texts of a prompt, which are known only when all are.
absl::Status ShowBest(const Task& task, const Writer& writer) {
  CAPSTAN_ASSIGN_OR_RETURN(const Texts texts, SearchTexts(task, writer));
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) std::cout << std::endl;
    TextStream stream;
    std::cout << Heading(*task.prompt)
              << stream.Add(TextOf(task, writer, texts[i])) << stream.Finish()
              << std::endl;
  }
  return absl::OkStatus();
}

// Prints texts separated by blank lines.
absl::Status Show(const std::vector<Task>& tasks,
                  const GenerateOptions& options, const Writer& writer) {
  const TokenModel* const model = writer.generator.model->token_model();
  const bool in_order = model == nullptr || model->causal();
  const bool search = writer.searches();
  const size_t sequences = static_cast<size_t>(writer.sequences);
  for (size_t i = 0; i < tasks.size() * sequences;
       i += search ? sequences : 1) {
    const Task& task = tasks[i / sequences];
    if (i > 0) std::cout << std::endl;
    if (search) {
      CAPSTAN_RETURN_IF_ERROR(ShowBest(task, writer));
      continue;
    }
    SampleOptions sample = writer.sample;
    sample.seed = options.seed + i;
    sample.stop_tokens = task.stops;
    CAPSTAN_RETURN_IF_ERROR(
        in_order
            ? WriteInOrder(task, writer, sample)
            : WriteInAnyOrder(
                  task, writer, sample,
                  options.picture.empty() ? "" : FromCaller(options.picture)));
  }
  return absl::OkStatus();
}

// The model's own settings, with those that flags give.
absl::StatusOr<Writer> MakeWriter(const GenerateOptions& options,
                                  const Generator& generator) {
  const TokenModel& model = *generator.model->token_model();
  CAPSTAN_RETURN_IF_ERROR(options.CheckSeed(model));
  CAPSTAN_RETURN_IF_ERROR(TellIgnoredSettings(*generator.model));
  Writer writer = {generator,
                   options.Sampling(/*default_tokens=*/0),
                   {},
                   {},
                   options.sequences};
  // There may be no tokenizer for ids.
  if (options.prompt_ids.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(writer.stops,
                             StopStringsOf(options.stop, *generator.model));
  }
  const char* const drawing = options.DrawingFlag();
  bool greedy = options.likeliest();
  if (model.causal()) {
    CAPSTAN_ASSIGN_OR_RETURN(const GenerationConfig config,
                             GenerationConfigOf(model));
    writer.beams = config.beams;
    // These say that no beams are wanted.
    if (greedy || drawing != nullptr) writer.beams.beams = 1;
    greedy = greedy || (config.do_sample == false && drawing == nullptr);
  }
  if (options.beams.has_value()) writer.beams.beams = *options.beams;
  if (options.length_penalty.has_value()) {
    writer.beams.length_penalty = *options.length_penalty;
  }
  if (!options.picture.empty()) {
    if (model.causal() || !options.output.empty() || options.sequences > 1) {
      return FieldError("--picture",
                        "is of one text that is shown, by a model that writes "
                        "in any order");
    }
  }
  const int64_t beams = writer.beams.beams;
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      beams <= kMostBeams, options.beams ? "--beams" : "the model's num_beams",
      absl::StrCat("at most ", kMostBeams), beams));
  if (beams > 1 && (options.likeliest() || drawing != nullptr)) {
    return FieldError(drawing != nullptr ? drawing
                      : options.greedy   ? "--greedy"
                                         : "--temperature",
                      "is without effect beside --beams, which looks for the "
                      "likeliest text: leave one of them out");
  }
  if (options.length_penalty.has_value() && beams == 1) {
    return FieldError("--length_penalty", "is for beams (--beams)");
  }
  if (beams > 1 ? options.sequences > beams : greedy && options.sequences > 1) {
    return FieldError(
        "--sequences",
        beams > 1 ? absl::StrCat("must be at most --beams, ", beams, ", is ",
                                 options.sequences)
                  : "would be one text again and again: it is always the "
                    "likeliest; set --temperature or --beams");
  }
  return writer;
}

// Whether a GPU can hold the largest batch of `tasks`.
absl::Status CheckBatches(const std::vector<Task>& tasks,
                          const GenerateOptions& options,
                          const Writer& writer) {
  const TokenModel& model = *writer.generator.model->token_model();
  size_t longest = 0;
  for (const Task& task : tasks) longest = std::max(longest, task.ids.size());
  const int64_t all = static_cast<int64_t>(tasks.size()) * writer.sequences;
  const int64_t texts = writer.searches() ? writer.beams.beams
                        : options.output.empty()
                            ? 1
                            : std::min(options.batch_size, all);
  // Without a flag the model may say how many it writes.
  const int64_t more = writer.sample.max_new_tokens;
  return CheckCache(model, texts, static_cast<int64_t>(longest) + more);
}

absl::StatusOr<int> Generate(const GenerateOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(CheckOptions(options));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts,
                           PromptsOf(options));
  CAPSTAN_RETURN_IF_ERROR(CheckTemplateFlags(options, prompts));
  at::set_num_threads(AvailableCores());
  at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(const Generator generator, LoadToWrite(options));
  CAPSTAN_ASSIGN_OR_RETURN(const Writer writer, MakeWriter(options, generator));
  if (!options.prompt_ids.empty()) {
    const Task task = {nullptr, options.prompt_ids, {}};
    CAPSTAN_RETURN_IF_ERROR(CheckBatches({task}, options, writer));
    CAPSTAN_ASSIGN_OR_RETURN(
        const Texts ids, writer.beams.beams > 1
                             ? SearchTexts(task, writer)
                             : SampleTexts({&task, 1}, options.seed, writer));
    std::cout << absl::StrJoin(ids[0], ",") << std::endl;
    if (IsCutOff(task, writer, ids[0])) {
      TellCutOff(*generator.model->token_model());
    }
    return 0;
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Task> tasks,
                           MakeTasks(prompts, options.Tasks(), generator));
  CAPSTAN_RETURN_IF_ERROR(CheckBatches(tasks, options, writer));
  CAPSTAN_RETURN_IF_ERROR(options.output.empty()
                              ? Show(tasks, options, writer)
                              : WriteFile(tasks, options, writer));
  return 0;
}

void AddFlags(Flags& flags, GenerateOptions* options) {
  AddModelFlag(flags, &options->model);
  flags.Add("--prompt", &options->prompt,
            "The text to continue; default: what standard input says");
  flags
      .Add("--input", &options->input,
           "Prompts, one a line; rows {\"prompt\": ..}, {\"messages\": [..]} "
           "or \"text\" in a .jsonl, with tools, documents and "
           "chat_template_kwargs as in training; - is standard input")
      .Type("FILE");
  flags
      .Add("--output", &options->output,
           "Write the texts into a new file, rows {\"prompt\": .., \"text\": "
           "..}, instead of showing them")
      .Type("FILE");
  flags
      .Add("--batch_size", &options->batch_size,
           "Texts made at once for --output; changes none of them")
      .Positive()
      .ShowDefault();
  flags
      .Add("--prompt_ids", &options->prompt_ids,
           "Token ids to continue, 1,2,3; prints ids: for folders without a "
           "tokenizer")
      .Delimiter(',');
  flags
      .Add("--sequences", &options->sequences,
           "Texts made of each prompt; with --beams the best ones")
      .Positive()
      .ShowDefault();
  flags
      .Add("--beams", &options->beams,
           "Look for the likeliest text with so many at a time, instead of "
           "sampling")
      .Positive();
  flags.Add("--length_penalty", &options->length_penalty,
            "Of beams: a text's log-probability is divided by its length to "
            "this power");
  flags
      .Add("--picture", &options->picture,
           "Of masked diffusion: an SVG of the order in which a text's tokens "
           "are chosen")
      .Type("FILE");
  AddSamplingFlags(flags, options);
}

const RegisterFunction<GenerateOptions> generate("generate", AddFlags,
                                                 Generate);

}  // namespace
}  // namespace capstan
