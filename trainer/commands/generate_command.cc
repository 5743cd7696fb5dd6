// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"
#include "plugins/sdk/batch_sampler.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/end_tokens.h"
#include "trainer/commands/command.h"
#include "trainer/commands/function_command.h"
#include "trainer/commands/generator.h"
#include "trainer/commands/text_view.h"
#include "trainer/launcher/launcher.h"
#include "trainer/launcher/signals.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// A text to continue or, if it has messages, a conversation to answer.
struct Prompt {
  std::string place;  // "prompts.jsonl:3", for errors
  std::string text;
  std::vector<ChatMessage> messages;
};

bool IsRow(absl::string_view line) {
  if (!absl::StartsWith(line, "{")) return false;
  const Json row = ParseJson<Json>(line);
  return row.is_object() &&
         (row.contains("prompt") || row.contains("messages"));
}

absl::Status AddMessages(const Json& messages, Prompt* prompt) {
  for (const Json& message : messages) {
    const auto string_of = [&message](const char* key) {
      const auto found = message.find(key);
      return found != message.end() && found->is_string()
                 ? absl::make_optional(found->get<std::string>())
                 : absl::nullopt;
    };
    if (!message.is_object() || !string_of("role") || !string_of("content")) {
      return absl::InvalidArgumentError(
          "a message needs two strings, \"role\" and \"content\"");
    }
    prompt->messages.push_back({*string_of("role"), *string_of("content")});
  }
  if (prompt->messages.empty()) {
    return absl::InvalidArgumentError("has no message");
  }
  if (prompt->messages.back().role == "assistant") {
    return absl::InvalidArgumentError(
        "the last message is the assistant's: there is nothing to answer");
  }
  return absl::OkStatus();
}

absl::Status ParseRow(absl::string_view line, Prompt* prompt) {
  const Json row = ParseJson<Json>(line);
  if (row.is_discarded()) return absl::InvalidArgumentError("isn't valid JSON");
  if (row.is_object() && row.contains("messages") &&
      row["messages"].is_array()) {
    return AddMessages(row["messages"], prompt);
  }
  const Json what =
      row.is_object() && row.contains("prompt") ? row["prompt"] : row;
  if (what.is_array()) return AddMessages(what, prompt);
  if (!what.is_string()) {
    return absl::InvalidArgumentError(
        "must be {\"prompt\": TEXT}, {\"messages\": [..]} or a string");
  }
  prompt->text = what.get<std::string>();
  return absl::OkStatus();
}

// Reads prompts from a file or standard input ("-"), one per line, skipping
// blank lines. Lines are JSON if the name ends in .jsonl or the first is an
// object with a prompt or messages: {"prompt": "text"}, {"prompt": [MESSAGE,
// ..]}, {"messages": [MESSAGE, ..]} or "text". Errors name the line. Returns at
// least one prompt.
absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path) {
  const bool standard_input = path == "-";
  const std::string name = standard_input ? "standard input" : path;
  std::string text;
  if (standard_input) {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(text, ReadWholeFile(path));
  }
  bool rows = absl::EndsWith(path, ".jsonl");
  std::vector<Prompt> prompts;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::ConsumeSuffix(&line, "\r");
    if (prompts.empty() && IsRow(line)) rows = true;
    Prompt prompt;
    prompt.place = absl::StrCat(name, ":", number);
    if (rows) {
      CAPSTAN_RETURN_IF_ERROR(Annotate(ParseRow(line, &prompt), prompt.place));
    } else {
      prompt.text = std::string(line);
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no prompt in ", name));
  }
  return prompts;
}

// A line of --output: {"prompt": TEXT or [MESSAGE, ..], "text": ..}, with
// U+FFFD for invalid UTF-8.
std::string OutputRow(const Prompt& prompt, const std::string& text) {
  Json given = prompt.text;
  if (!prompt.messages.empty()) {
    given = Json::array();
    for (const ChatMessage& message : prompt.messages) {
      given.push_back({{"role", message.role}, {"content", message.content}});
    }
  }
  const Json row = {{"prompt", given}, {"text", text}};
  return absl::StrCat(
      row.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace),
      "\n");
}

struct GenerateOptions : SamplingOptions {
  absl::optional<std::string> prompt;
  std::vector<int64_t> prompt_ids;
  // A file of prompts, one per line (ReadPrompts); "-": standard input.
  std::string input;
  std::string output;      // file for prompts and texts; empty: print
  int64_t batch_size = 8;  // texts at once, with `output`
};

// A prompt as the model sees it.
struct Task {
  const Prompt* prompt;
  std::vector<int64_t> ids;
  std::vector<int64_t> stops;  // besides the model's own end of text
};

absl::Status CheckOptions(const GenerateOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(options.Check());
  const int given = (options.prompt.has_value() ? 1 : 0) +
                    (options.prompt_ids.empty() ? 0 : 1) +
                    (options.input.empty() ? 0 : 1);
  if (given > 1 || (given == 0 && isatty(STDIN_FILENO) != 0)) {
    return absl::InvalidArgumentError(
        "give one of --prompt=TEXT, --prompt_ids=1,2,3 and --input=FILE");
  }
  if (options.output.empty()) return absl::OkStatus();
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

// Renders conversations with their template, and texts with the tokenizer's
// start tokens, as in training.
class TaskMaker {
 public:
  TaskMaker(const GenerateOptions& options, const Generator& generator)
      : options_(options), generator_(generator) {}

  absl::StatusOr<Task> Make(const Prompt& prompt) {
    const Tokenizer* const tokenizer = generator_.tokenizer;
    if (tokenizer == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("--model=", options_.model, " has no tokenizer for ",
                       prompt.place, " (", generator_.tokenizer_error.message(),
                       "); use --prompt_ids=1,2,3"));
    }
    Task task = {&prompt, {}, {}};
    if (prompt.messages.empty()) {
      task.ids = tokenizer->Encode(prompt.text);
      if (task.ids.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(prompt.place, " is empty"));
      }
      tokenizer->AddEnds(&task.ids);
      const int64_t eos = tokenizer->special_ids().eos;
      if (eos >= 0) task.stops = {eos};
    } else {
      CAPSTAN_RETURN_IF_ERROR(FindTemplate());
      const absl::StatusOr<ChatText> text =
          template_->Render(prompt.messages, /*generation_prompt=*/true);
      if (!text.ok()) return Annotate(text.status(), prompt.place);
      task.ids = tokenizer->Encode(text->text);
      task.stops = AnswerStops(*template_, *tokenizer);
    }
    return task;
  }

 private:
  absl::Status FindTemplate() {
    if (template_ != nullptr) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<ChatTemplate>> found =
        FindChatTemplate("", *generator_.tokenizer);
    if (!found.ok()) {
      return Annotate(found.status(), absl::StrCat("--model=", options_.model));
    }
    template_ = *std::move(found);
    return absl::OkStatus();
  }

  const GenerateOptions& options_;
  const Generator& generator_;
  std::unique_ptr<ChatTemplate> template_;
};

// Prepares all tasks before generating, so that a bad prompt fails early.
absl::StatusOr<std::vector<Task>> Tasks(const std::vector<Prompt>& prompts,
                                        const GenerateOptions& options,
                                        const Generator& generator) {
  TaskMaker maker(options, generator);
  const TokenModel* const model = generator.model->token_model();
  std::vector<Task> tasks;
  for (const Prompt& prompt : prompts) {
    CAPSTAN_ASSIGN_OR_RETURN(Task task, maker.Make(prompt));
    const int64_t length = static_cast<int64_t>(task.ids.size());
    if (model != nullptr && length >= model->max_positions()) {
      return absl::InvalidArgumentError(absl::StrCat(
          prompt.place, " has ", length, " tokens, the model only ",
          model->max_positions(), " positions"));
    }
    tasks.push_back(std::move(task));
  }
  return tasks;
}

// Printed before the text.
std::string Heading(const Prompt& prompt) {
  return prompt.messages.empty()
             ? prompt.text
             : absl::StrCat("> ", prompt.messages.back().content, "\n");
}

// All tokens that end the task's text.
std::vector<int64_t> StopsOf(const Task& task, const Generator& generator) {
  std::vector<int64_t> stops = task.stops;
  const TokenModel* const model = generator.model->token_model();
  if (model == nullptr) return stops;
  for (const int64_t end : EndTokensOf(*model)) stops.push_back(end);
  return stops;
}

// Writes each token as it is chosen.
absl::Status WriteInOrder(const Task& task, const Generator& generator,
                          SampleOptions sample) {
  TextStream stream;
  const bool answer = !task.prompt->messages.empty();
  const std::vector<int64_t> stops = StopsOf(task, generator);
  std::cout << Heading(*task.prompt) << std::flush;
  sample.on_token = [&](int64_t token) {
    // End-of-turn tokens aren't part of the answer.
    if (answer && std::find(stops.begin(), stops.end(), token) != stops.end()) {
      return;
    }
    std::cout << stream.Add(
                     generator.tokenizer->Decode(absl::MakeSpan(&token, 1)))
              << std::flush;
  };
  CAPSTAN_RETURN_IF_ERROR(generator.Sample(task.ids, sample).status());
  std::cout << stream.Finish() << std::endl;
  return absl::OkStatus();
}

// Shows the whole text as it is unmasked.
absl::Status WriteInAnyOrder(const Task& task, const Generator& generator,
                             SampleOptions sample) {
  const TokenModel* const model = generator.model->token_model();
  MaskedTextView view(STDOUT_FILENO, generator.tokenizer, model->mask_token(),
                      StopsOf(task, generator), Heading(*task.prompt));
  view.Show({});
  sample.on_text = [&](absl::Span<const int64_t> text) {
    view.Show(text.subspan(task.ids.size()));
  };
  const absl::StatusOr<std::vector<int64_t>> text =
      generator.Sample(task.ids, sample);
  view.Finish(text.ok() ? absl::MakeConstSpan(*text).subspan(task.ids.size())
                        : absl::Span<const int64_t>());
  return text.status();
}

// The text after the prompt, up to the first end of text.
std::string TextOf(const Task& task, const Generator& generator,
                   const std::vector<int64_t>& all) {
  const absl::Span<const int64_t> text =
      absl::MakeConstSpan(all).subspan(task.ids.size());
  const std::vector<int64_t> stops = StopsOf(task, generator);
  const auto end =
      std::find_first_of(text.begin(), text.end(), stops.begin(), stops.end());
  return generator.tokenizer->Decode(text.first(end - text.begin()));
}

// The texts of tasks [begin, end), prompts included: at once if the objective
// and the model can, which changes no text.
absl::StatusOr<std::vector<std::vector<int64_t>>> SampleTasks(
    absl::Span<const Task> tasks, uint64_t first_seed,
    const Generator& generator, SampleOptions sample) {
  std::vector<BatchPrompt> prompts;
  for (const Task& task : tasks) {
    prompts.push_back({task.ids, first_seed + prompts.size(), task.stops});
  }
  auto* const sampler = dynamic_cast<BatchSampler*>(generator.objective.get());
  if (sampler != nullptr && prompts.size() > 1) {
    PlainRunner runner;
    absl::StatusOr<std::vector<std::vector<int64_t>>> texts =
        sampler->SampleBatch(*generator.model, prompts, sample, nullptr,
                             runner);
    if (!absl::IsUnimplemented(texts.status())) {
      CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
      return texts;
    }
  }
  std::vector<std::vector<int64_t>> texts;
  for (const BatchPrompt& prompt : prompts) {
    sample.seed = prompt.seed;
    sample.stop_tokens = prompt.stop_tokens;
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<int64_t> text,
                             generator.Sample(prompt.ids, sample));
    texts.push_back(std::move(text));
  }
  return texts;
}

absl::Status WriteFile(const std::vector<Task>& tasks,
                       const GenerateOptions& options,
                       const Generator& generator, SampleOptions sample) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HiddenFile> file,
                           HiddenFile::Create(FromCaller(options.output)));
  const Console console(STDOUT_FILENO);
  // A signal keeps the finished texts.
  InstallStopHandlers(SecondSignal::kEndsProcess);
  RanksHaveMet();
  sample.stop = [] { return StopRequested() != 0; };
  size_t done = 0;
  while (done < tasks.size()) {
    if (console.terminal()) {
      console.Write(absl::StrCat("\r\x1b[K", done, " of ", tasks.size()));
    }
    const absl::Span<const Task> batch =
        absl::MakeConstSpan(tasks).subspan(done, options.batch_size);
    const auto texts =
        SampleTasks(batch, options.seed + done, generator, sample);
    if (absl::IsCancelled(texts.status())) break;
    if (!texts.ok()) return Annotate(texts.status(), batch[0].prompt->place);
    for (size_t i = 0; i < batch.size(); ++i) {
      CAPSTAN_RETURN_IF_ERROR(file->Write(OutputRow(
          *batch[i].prompt, TextOf(batch[i], generator, (*texts)[i]))));
    }
    done += batch.size();
  }
  if (done == 0) {
    return absl::CancelledError("stopped before the first text was done");
  }
  CAPSTAN_RETURN_IF_ERROR(file->Close());
  if (done < tasks.size()) {
    return absl::CancelledError(absl::StrCat("stopped; ", options.output,
                                             " has ", done, " of ",
                                             tasks.size(), " texts"));
  }
  console.Write(absl::StrCat(console.terminal() ? "\r\x1b[K" : "", "wrote ",
                             options.output, ": ", tasks.size(),
                             tasks.size() == 1 ? " text\n" : " texts\n"));
  return absl::OkStatus();
}

// Prints texts separated by blank lines.
absl::Status Show(const std::vector<Task>& tasks,
                  const GenerateOptions& options, const Generator& generator,
                  SampleOptions sample) {
  const TokenModel* const model = generator.model->token_model();
  const bool in_order = model == nullptr || model->causal();
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (i > 0) std::cout << std::endl;
    sample.seed = options.seed + i;
    sample.stop_tokens = tasks[i].stops;
    const absl::Status status =
        in_order ? WriteInOrder(tasks[i], generator, sample)
                 : WriteInAnyOrder(tasks[i], generator, sample);
    CAPSTAN_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Generate(const GenerateOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(CheckOptions(options));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts,
                           PromptsOf(options));
  at::set_num_threads(AvailableCores());
  at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(
      const Generator generator,
      LoadGenerator(options.model, options.adapter, options.plugin_path,
                    options.overrides, WeightFormOf(options.weights)));
  const SampleOptions sample = options.Sampling(/*default_tokens=*/0);
  if (!options.prompt_ids.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                             generator.Sample(options.prompt_ids, sample));
    std::cout << absl::StrJoin(ids, ",") << std::endl;
    return 0;
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Task> tasks,
                           Tasks(prompts, options, generator));
  CAPSTAN_RETURN_IF_ERROR(options.output.empty()
                              ? Show(tasks, options, generator, sample)
                              : WriteFile(tasks, options, generator, sample));
  return 0;
}

void AddFlags(Flags& flags, GenerateOptions* options) {
  AddModelFlag(flags, &options->model);
  flags.Add("--prompt", &options->prompt,
            "The text to continue; default: what standard input says");
  flags
      .Add("--input", &options->input,
           "Prompts, one a line; rows {\"prompt\": ..}, {\"messages\": [..]} "
           "or \"text\" in a .jsonl; - is standard input")
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
  AddSamplingFlags(flags, options);
}

const RegisterFunction<GenerateOptions> generate(70, "generate",
                                                 "Let a model continue a text",
                                                 AddFlags, Generate);

}  // namespace
}  // namespace capstan
