// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/output_file.h"
#include "base/status.h"
#include "plugins/sdk/chat_template.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/generator.h"
#include "trainer/commands/masked_text_view.h"
#include "trainer/commands/prompts.h"
#include "trainer/launcher/launcher.h"
#include "trainer/launcher/signals.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

// A prompt as the model reads it.
struct Task {
  const Prompt* prompt;
  std::vector<int64_t> ids;
  std::vector<int64_t> stops;  // beside the model's own end of text
};

absl::Status CheckOptions(const GenerateOptions& options) {
  if (options.max_new_tokens.has_value() && *options.max_new_tokens < 1) {
    return FieldError(
        "--max_new_tokens",
        absl::StrCat("must be greater than 0, is ", *options.max_new_tokens));
  }
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
  if (PathExists(FromCaller({options.output})[0])) {
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
    return ReadPrompts(FromCaller({options.input})[0]);
  }
  absl::StatusOr<std::vector<Prompt>> prompts = ReadPrompts("-");
  if (prompts.ok() || !options.input.empty()) return prompts;
  return Annotate(prompts.status(),
                  "give --prompt=TEXT, --prompt_ids=1,2,3 or --input=FILE");
}

// Conversations as their template writes them, texts as the model has seen
// texts begin.
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

// All of them before the first text is written, so that none is lost to a bad
// prompt behind it.
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

// What stands before the text on the screen.
std::string Heading(const Prompt& prompt) {
  return prompt.messages.empty()
             ? prompt.text
             : absl::StrCat("> ", prompt.messages.back().content, "\n");
}

// Each token as it is chosen.
absl::Status WriteInOrder(const Task& task, const Generator& generator,
                          SampleOptions sample) {
  TextStream stream;
  const bool answer = !task.prompt->messages.empty();
  std::cout << Heading(*task.prompt) << std::flush;
  sample.on_token = [&](int64_t token) {
    // What ends a turn is no part of the answer.
    if (answer && std::find(task.stops.begin(), task.stops.end(), token) !=
                      task.stops.end()) {
      return;
    }
    std::cout << stream.Add(
                     generator.tokenizer->Decode(absl::MakeSpan(&token, 1)))
              << std::flush;
  };
  PlainRunner runner;
  CAPSTAN_RETURN_IF_ERROR(
      generator.objective->Sample(*generator.model, task.ids, sample, runner)
          .status());
  std::cout << stream.Finish() << std::endl;
  return absl::OkStatus();
}

// The whole text as it comes out of its masks.
absl::Status WriteInAnyOrder(const Task& task, const Generator& generator,
                             SampleOptions sample) {
  const TokenModel* const model = generator.model->token_model();
  std::vector<int64_t> stops = task.stops;
  stops.push_back(model->eos_token());
  MaskedTextView view(STDOUT_FILENO, generator.tokenizer, model->mask_token(),
                      std::move(stops), Heading(*task.prompt));
  view.Show({});
  sample.on_text = [&](absl::Span<const int64_t> text) {
    view.Show(text.subspan(task.ids.size()));
  };
  PlainRunner runner;
  const absl::StatusOr<std::vector<int64_t>> text =
      generator.objective->Sample(*generator.model, task.ids, sample, runner);
  view.Finish(text.ok() ? absl::MakeConstSpan(*text).subspan(task.ids.size())
                        : absl::Span<const int64_t>());
  return text.status();
}

// What follows the prompt, up to the first end of text.
absl::StatusOr<std::string> TextOf(const Task& task, const Generator& generator,
                                   const SampleOptions& sample) {
  PlainRunner runner;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> all,
      generator.objective->Sample(*generator.model, task.ids, sample, runner));
  const absl::Span<const int64_t> text =
      absl::MakeConstSpan(all).subspan(task.ids.size());
  std::vector<int64_t> stops = task.stops;
  const TokenModel* const model = generator.model->token_model();
  if (model != nullptr) stops.push_back(model->eos_token());
  const auto end =
      std::find_first_of(text.begin(), text.end(), stops.begin(), stops.end());
  return generator.tokenizer->Decode(text.first(end - text.begin()));
}

absl::Status WriteFile(const std::vector<Task>& tasks,
                       const GenerateOptions& options,
                       const Generator& generator, SampleOptions sample) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<HiddenFile> file,
                           HiddenFile::Create(FromCaller({options.output})[0]));
  const Console console(STDOUT_FILENO);
  // A signal keeps the texts that are done.
  InstallStopHandlers(SecondSignal::kEndsProcess);
  RanksHaveMet();
  sample.stop = [] { return StopRequested() != 0; };
  size_t done = 0;
  for (; done < tasks.size(); ++done) {
    const size_t i = done;
    if (console.terminal()) {
      console.Write(absl::StrCat("\r\x1b[K", i, " of ", tasks.size()));
    }
    sample.seed = options.seed + i;
    sample.stop_tokens = tasks[i].stops;
    const absl::StatusOr<std::string> text =
        TextOf(tasks[i], generator, sample);
    if (absl::IsCancelled(text.status())) break;
    if (!text.ok()) return Annotate(text.status(), tasks[i].prompt->place);
    CAPSTAN_RETURN_IF_ERROR(file->Write(OutputRow(*tasks[i].prompt, *text)));
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

// On the screen, a blank line between one and the next.
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

absl::Status Generate(const GenerateOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(CheckOptions(options));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts,
                           PromptsOf(options));
  at::set_num_threads(AvailableCores());
  at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(
      const Generator generator,
      LoadGenerator(options.model, options.adapter, options.plugin_path,
                    options.overrides));
  SampleOptions sample;
  sample.max_new_tokens = options.max_new_tokens.value_or(0);
  sample.greedy = options.greedy;
  sample.temperature = options.temperature;
  sample.top_k = options.top_k;
  sample.top_p = options.top_p;
  sample.seed = options.seed;
  if (!options.prompt_ids.empty()) {
    PlainRunner runner;
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::vector<int64_t> ids,
        generator.objective->Sample(*generator.model, options.prompt_ids,
                                    sample, runner));
    std::cout << absl::StrJoin(ids, ",") << std::endl;
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Task> tasks,
                           Tasks(prompts, options, generator));
  return options.output.empty() ? Show(tasks, options, generator, sample)
                                : WriteFile(tasks, options, generator, sample);
}

}  // namespace

int GenerateCommand(const GenerateOptions& options) {
  absl::Status status;
  try {
    status = Generate(options);
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  return status.ok() ? 0 : Fail(status);
}

}  // namespace capstan
