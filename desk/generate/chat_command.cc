// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"
#include "desk/generate/model_flags.h"
#include "desk/generate/text_view.h"
#include "inference/decode/prompt.h"
#include "inference/decode/stop_strings.h"
#include "inference/decode/texts.h"
#include "inference/engine/answers.h"
#include "inference/engine/engine.h"
#include "inference/load/generator.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

constexpr int64_t kDefaultMaxNewTokens = 512;

struct ChatOptions : SamplingOptions {
  std::string system;  // the first message; empty: none
  std::string tools;   // a file with their JSON list; empty: none
};

volatile sig_atomic_t interrupted = 0;

void NoteInterrupt(int) { interrupted = 1; }

// How often an answer that comes slowly is looked at for an interrupt.
constexpr std::chrono::milliseconds kPoll{50};

class Chat {
 public:
  static absl::StatusOr<std::unique_ptr<Chat>> Start(
      const ChatOptions& options) {
    auto chat = std::unique_ptr<Chat>(new Chat(options));
    CAPSTAN_ASSIGN_OR_RETURN(chat->generator_, LoadToWrite(options));
    CAPSTAN_RETURN_IF_ERROR(chat->FindTemplate());
    Model& model = *chat->generator_.model;
    CAPSTAN_RETURN_IF_ERROR(options.CheckSeed(*model.token_model()));
    CAPSTAN_RETURN_IF_ERROR(TellIgnoredSettings(model));
    CAPSTAN_ASSIGN_OR_RETURN(chat->stop_strings_,
                             StopStringsOf(options.stop, model));
    const TokenModel& tokens = *model.token_model();
    CAPSTAN_RETURN_IF_ERROR(CheckCache(tokens, 1, tokens.max_positions()));
    if (!options.tools.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(chat->tools_,
                               ReadWholeFile(FromCaller(options.tools)));
      if (!ParseJson<nlohmann::json>(chat->tools_).is_array()) {
        return FieldError("--tools",
                          absl::StrCat(options.tools, " isn't a JSON list"));
      }
    }
    if (!options.system.empty()) {
      chat->messages_.push_back({"system", options.system});
    }
    EngineOptions engine;
    engine.cache_bytes = std::numeric_limits<int64_t>::max();
    // Each turn's prompt begins with all turns before.
    engine.keep_context = true;
    chat->engine_ = std::make_unique<Engine>(
        std::vector<EngineModel>{{&model, chat->generator_.objective.get(),
                                  chat->generator_.tokenizer.get()}},
        engine);
    return chat;
  }

  // Runs until end of input.
  absl::Status Talk() {
    const bool terminal = isatty(STDIN_FILENO) != 0;
    if (terminal) {
      std::cout << "Ctrl-C ends an answer, Ctrl-D the chat.\n";
    }
    for (std::string line;;) {
      if (terminal) std::cout << "\x1b[1m> \x1b[0m" << std::flush;
      if (!std::getline(std::cin, line)) break;
      if (absl::StripAsciiWhitespace(line).empty()) continue;
      messages_.push_back({"user", line});
      CAPSTAN_RETURN_IF_ERROR(Answer());
    }
    if (terminal) std::cout << std::endl;
    return absl::OkStatus();
  }

 private:
  explicit Chat(const ChatOptions& options) : options_(options) {}

  absl::Status FindTemplate() {
    const Tokenizer* const tokenizer = generator_.tokenizer.get();
    if (tokenizer == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("--model=", options_.model, " has no tokenizer (",
                       generator_.tokenizer_error.message(), ")"));
    }
    if (generator_.model->token_model() == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "--model=", options_.model, " isn't a model of token sequences"));
    }
    CAPSTAN_ASSIGN_OR_RETURN(template_,
                             ChatTemplateOf(options_.Tasks(), *tokenizer));
    stops_ = AnswerStops(*template_, *tokenizer);
    if (TokenModel* const model = generator_.model->token_model()) {
      for (const int64_t end : EndTokensOf(*model)) stops_.push_back(end);
    }
    return absl::OkStatus();
  }

  // The conversation's tokens, for the assistant to continue. Drops the oldest
  // turns if there are too many.
  absl::StatusOr<std::vector<int64_t>> PromptIds() {
    const int64_t most = generator_.model->token_model()->max_positions();
    for (bool told = false;;) {
      ChatInput input;
      input.messages = messages_;
      input.variables = options_.chat_template_kwargs;
      input.tools = tools_;
      input.generation_prompt = true;
      CAPSTAN_ASSIGN_OR_RETURN(const RenderedChat text,
                               template_->RenderInput(input));
      CAPSTAN_RETURN_IF_ERROR(CheckKnown(*generator_.tokenizer, text.text));
      std::vector<int64_t> ids = generator_.tokenizer->Encode(text.text);
      // Leaves room for an answer.
      if (static_cast<int64_t>(ids.size()) < most - most / 8) return ids;
      const size_t oldest = messages_[0].role == "system" ? 1 : 0;
      if (messages_.size() < oldest + 3) {
        return absl::InvalidArgumentError(
            absl::StrCat("that is ", ids.size(), " tokens, the model has ",
                         most, " positions"));
      }
      messages_.erase(messages_.begin() + oldest,
                      messages_.begin() + oldest + 2);
      if (!std::exchange(told, true)) {
        std::cerr << "(the conversation is longer than the model's " << most
                  << " positions: its oldest turns are forgotten)\n";
      }
    }
  }

  absl::Status Answer() {
    absl::StatusOr<std::vector<int64_t>> ids = PromptIds();
    if (absl::IsInvalidArgument(ids.status())) {
      // A message that doesn't fit doesn't end the chat.
      std::cerr << "(" << PrintableText(ids.status().message()) << ")\n";
      messages_.pop_back();
      return absl::OkStatus();
    }
    CAPSTAN_RETURN_IF_ERROR(ids.status());
    const auto write = generator_.model->token_model()->causal()
                           ? &Chat::WriteInOrder
                           : &Chat::WriteInAnyOrder;
    std::string answer;
    interrupted = 0;
    cut_off_ = false;
    CAPSTAN_RETURN_IF_ERROR((this->*write)(*ids, &answer));
    if (cut_off_) TellCutOff(*generator_.model->token_model());
    messages_.push_back({"assistant", answer});
    ++answers_;
    return absl::OkStatus();
  }

  // Writes each token as it is chosen.
  absl::Status WriteInOrder(const std::vector<int64_t>& ids,
                            std::string* answer) {
    StoppedText stopped(stop_strings_);
    const absl::Status status = Ask(ids, [&](const AnswerPiece& piece) {
      for (const AnswerToken& of : piece.tokens) {
        if (std::find(stops_.begin(), stops_.end(), of.token) == stops_.end()) {
          std::cout << stopped.Add(generator_.tokenizer->Decode(
                           absl::MakeSpan(&of.token, 1)))
                    << std::flush;
        }
      }
    });
    std::cout << stopped.Finish() << std::endl;
    *answer = stopped.text();
    return status;
  }

  // Shows the whole answer as it is unmasked; if stopped, keeps the text before
  // the first mask.
  absl::Status WriteInAnyOrder(const std::vector<int64_t>& ids,
                               std::string* answer) {
    const int64_t mask = generator_.model->token_model()->mask_token();
    MaskedTextView view(STDOUT_FILENO, generator_.tokenizer.get(), mask, stops_,
                        "", stop_strings_);
    std::vector<int64_t> text;
    const absl::Status status = Ask(ids, [&](const AnswerPiece& piece) {
      if (piece.whole.empty()) return;
      text = piece.whole;
      view.Show(text);
    });
    if (!status.ok()) text.clear();
    text.erase(std::find(text.begin(), text.end(), mask), text.end());
    view.Finish(text);
    *answer = view.Decode(text);
    return status;
  }

  // Has the engine continue `ids`, and `show` what comes, until an interrupt,
  // or the model's last position.
  absl::Status Ask(const std::vector<int64_t>& ids,
                   const std::function<void(const AnswerPiece&)>& show) {
    EngineRequest request;
    request.prompt = ids;
    request.sample = Sampling();
    request.stops = stop_strings_;
    const TokenModel& model = *generator_.model->token_model();
    const int64_t room = MostTokens(model) - static_cast<int64_t>(ids.size());
    const bool short_of_room =
        model.causal() && room < request.sample.max_new_tokens;
    if (short_of_room) request.sample.max_new_tokens = room;
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Answers> answers,
                             engine_->Submit({std::move(request)}));
    while (answers->left() > 0) {
      const absl::optional<AnswerPiece> piece = answers->Next(kPoll);
      if (piece.has_value()) {
        show(*piece);
        if (piece->last) {
          cut_off_ = short_of_room && piece->status.ok() && !piece->stopped;
          return piece->status;
        }
      }
      if (std::exchange(interrupted, 0) != 0) break;
    }
    return absl::OkStatus();
  }

  SampleOptions Sampling() const {
    // Samplers that don't write in order have other settings tied to the
    // length.
    SampleOptions sample = options_.Sampling(
        generator_.model->token_model()->causal() ? kDefaultMaxNewTokens : 0);
    sample.seed += answers_;
    sample.stop_tokens = stops_;
    return sample;
  }

  const ChatOptions options_;
  Generator generator_;
  std::unique_ptr<ChatTemplate> template_;
  std::vector<int64_t> stops_;
  StopStrings stop_strings_;
  std::string tools_;  // JSON; "": none
  std::vector<ChatMessage> messages_;
  uint64_t answers_ = 0;
  bool cut_off_ = false;            // the last answer, for want of positions
  std::unique_ptr<Engine> engine_;  // ends before its model
};

void AddFlags(Flags& flags, ChatOptions* options) {
  AddModelFlag(flags, &options->model);
  flags.Add("--system", &options->system, "What the conversation begins with");
  flags
      .Add("--tools", &options->tools,
           "Tools that the model may call: a JSON list of their schemas")
      .Type("FILE");
  AddSamplingFlags(flags, options);
}

absl::StatusOr<int> RunChat(const ChatOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(options.Check());
  at::set_num_threads(AvailableCores());
  const at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Chat> chat,
                           Chat::Start(options));
  struct sigaction action = {};
  action.sa_handler = NoteInterrupt;
  action.sa_flags = SA_RESTART;  // the terminal discarded the line
  sigaction(SIGINT, &action, nullptr);
  CAPSTAN_RETURN_IF_ERROR(chat->Talk());
  return 0;
}

const RegisterFunction<ChatOptions> chat_command("chat", AddFlags, RunChat);

}  // namespace
}  // namespace capstan
