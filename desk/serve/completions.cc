// SPDX-License-Identifier: Apache-2.0
#include "desk/serve/completions.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "inference/decode/prompt.h"
#include "inference/decode/texts.h"
#include "plugins/sdk/token_model.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

// How long a client's thread waits before it looks whether the client is there.
constexpr std::chrono::milliseconds kWait{500};
// Parsed, a body takes some forty times its bytes. Larger ones wait for each
// other, up to kTurn.
constexpr size_t kLargeBody = size_t{1} << 20;
constexpr std::chrono::seconds kTurn{60};

int HttpStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 503;
    default:
      return 500;
  }
}

void SendStatus(const absl::Status& status, httplib::Response* response) {
  SendError(HttpStatus(status), std::string(status.message()), response,
            DetailsOf(status));
}

// Of an answer that has begun.
Json LateError(const absl::Status& status) {
  return ErrorJson(HttpStatus(status), std::string(status.message()),
                   DetailsOf(status));
}

// An error of what is to be continued, with the request's field.
absl::Status AboutPrompt(Api api, const absl::Status& status) {
  const char* const prompt = api == Api::kChat ? "messages" : "prompt";
  if (absl::IsOutOfRange(status)) {
    return AboutField(status, prompt, "context_length_exceeded");
  }
  if (!absl::IsInvalidArgument(status)) return status;
  const absl::optional<std::string> field = FieldOf(status);
  if (!field.has_value()) return AboutField(status, prompt, "invalid_value");
  // A flag is the server's.
  if (absl::StartsWith(*field, "--")) return status;
  return AboutField(Annotate(status, *field), *field, "invalid_value");
}

uint64_t AnySeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

struct Completions::Running {
  Running(Api api, CompletionRequest request, std::string model,
          std::vector<ReplyPrompt> prompts, StopStrings stops,
          const Tokenizer* tokenizer)
      : stream(request.stream),
        reply(api, std::move(request), std::move(model), std::move(prompts),
              std::move(stops), tokenizer) {}

  // The next piece; its error ends all texts.
  absl::optional<AnswerPiece> Next(std::chrono::milliseconds limit) {
    if (first.has_value()) return std::exchange(first, absl::nullopt);
    return answers->Next(limit);
  }
  bool done() const { return !first.has_value() && answers->left() == 0; }

  const bool stream;
  Reply reply;
  std::unique_ptr<Answers> answers;
  absl::optional<AnswerPiece> first;  // which has come before the answer began
  bool begun = false;
  bool ended = false;
};

Completions::Completions(const std::vector<NamedModel>* models, Engine* engine,
                         CompletionDefaults defaults, HttpServer* server)
    : models_(*models),
      engine_(engine),
      defaults_(std::move(defaults)),
      server_(server),
      created_(std::time(nullptr)) {}

void Completions::AddRoutes() {
  server_->Post("/v1/chat/completions", [this](const httplib::Request& request,
                                               httplib::Response& response) {
    Complete(Api::kChat, request, &response);
  });
  server_->Post("/v1/completions", [this](const httplib::Request& request,
                                          httplib::Response& response) {
    Complete(Api::kCompletions, request, &response);
  });
  server_->Get("/v1/models",
               [this](const httplib::Request&, httplib::Response& response) {
                 Json list = {{"object", "list"}, {"data", Json::array()}};
                 for (const NamedModel& model : models_) {
                   list["data"].push_back(ModelCard(model));
                 }
                 SendJson(list, &response);
               });
  server_->Get(R"(/v1/models/(.+))", [this](const httplib::Request& request,
                                            httplib::Response& response) {
    const absl::StatusOr<size_t> found = Find(request.matches[1]);
    if (!found.ok()) return SendStatus(found.status(), &response);
    SendJson(ModelCard(models_[*found]), &response);
  });
  server_->Get("/health",
               [this](const httplib::Request&, httplib::Response& response) {
                 const EngineLoad load = engine_->load();
                 SendJson({{"status", "ok"},
                           {"writing", load.writing},
                           {"waiting", load.waiting},
                           {"answered", load.answered},
                           {"prompt_tokens", load.prompt_tokens},
                           {"new_tokens", load.new_tokens}},
                          &response);
               });
}

Json Completions::ModelCard(const NamedModel& model) const {
  return {
      {"id", model.name},
      {"object", "model"},
      {"created", created_},
      {"owned_by", "capstan"},
      {"max_model_len", model.generator.model->token_model()->max_positions()}};
}

absl::StatusOr<size_t> Completions::Find(const std::string& name) const {
  for (size_t i = 0; i < models_.size(); ++i) {
    if (name.empty() || models_[i].name == name) return i;
  }
  const std::string names =
      absl::StrJoin(models_, ", ", [](std::string* out, const NamedModel& of) {
        absl::StrAppend(out, "\"", of.name, "\"");
      });
  return AboutField(absl::NotFoundError(absl::StrCat(
                        "no model \"", name, "\" is served here, but ", names)),
                    "model", "model_not_found");
}

absl::StatusOr<std::vector<ReplyPrompt>> Completions::Prompts(
    const CompletionRequest& request, const NamedModel& model) const {
  const Generator& generator = model.generator;
  std::vector<ReplyPrompt> prompts;
  // A client isn't told where the model's files are.
  TaskSettings settings = defaults_.tasks;
  settings.model = model.name;
  CAPSTAN_ASSIGN_OR_RETURN(std::vector<Task> tasks,
                           MakeTasks(request.prompts, settings, generator));
  for (Task& task : tasks) {
    prompts.push_back({std::move(task.ids), task.prompt->text, {}});
    prompts.back().ends = StopsOf(task, generator);
  }
  const int64_t known = generator.model->token_model()->vocab_size();
  for (const std::vector<int64_t>& ids : request.prompt_ids) {
    for (const int64_t id : ids) {
      if (id >= 0 && id < known) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "the prompt's token ", id, " isn't one of the model's ", known));
    }
    const Task task = {nullptr, ids, {}};
    prompts.push_back(
        {ids, generator.tokenizer->Decode(ids), StopsOf(task, generator)});
    const int64_t eos = generator.tokenizer->special_ids().eos;
    if (eos >= 0) prompts.back().ends.push_back(eos);
  }
  return prompts;
}

absl::Status Completions::LimitLength(const Generator& generator,
                                      const ReplyPrompt& prompt,
                                      SampleOptions* sample) const {
  const TokenModel& model = *generator.model->token_model();
  // Samplers that don't write in order have other settings tied to the length.
  if (!model.causal()) return absl::OkStatus();
  const int64_t given = static_cast<int64_t>(prompt.ids.size());
  const int64_t room = MostTokens(model) - given;
  if (room < 1) {
    return absl::OutOfRangeError(
        absl::StrCat("the prompt has ", given, " tokens, the model only ",
                     model.max_positions(), " positions"));
  }
  int64_t& most = sample->max_new_tokens;
  most = std::min(most == 0 ? defaults_.max_tokens : most, room);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Completions::Running>> Completions::Start(
    Api api, const std::string& body) const {
  CAPSTAN_ASSIGN_OR_RETURN(CompletionRequest request,
                           ParseCompletionRequest(api, body));
  CAPSTAN_ASSIGN_OR_RETURN(const size_t model, Find(request.model));
  const Generator& generator = models_[model].generator;
  if (request.logprobs >= 0 && !engine_->batches(model)) {
    return AboutField(
        absl::InvalidArgumentError(
            "logprobs: the model writes one text at a time, without them"),
        "logprobs", "unsupported_value");
  }
  auto made = Prompts(request, models_[model]);
  if (!made.ok()) return AboutPrompt(api, made.status());
  std::vector<ReplyPrompt> prompts = *std::move(made);
  CAPSTAN_ASSIGN_OR_RETURN(StopStrings stops,
                           StopStringsOf(request.stop, *generator.model));
  const uint64_t seed = request.seed.has_value() ? *request.seed : AnySeed();
  std::vector<EngineRequest> texts;
  for (const ReplyPrompt& prompt : prompts) {
    EngineRequest text;
    text.model = model;
    text.prompt = prompt.ids;
    text.sample = request.sample;
    text.sample.stop_tokens = prompt.ends;
    const absl::Status fits = LimitLength(generator, prompt, &text.sample);
    if (!fits.ok()) return AboutPrompt(api, fits);
    if (!request.only_echo) text.stops = stops;
    text.logprobs = request.logprobs;
    text.prompt_logprobs = request.echo && request.logprobs >= 0;
    for (int64_t i = 0; i < request.choices; ++i) {
      text.sample.seed = seed + texts.size();
      texts.push_back(text);
    }
  }
  // By which there may be more texts than may wait.
  const bool several = request.choices > 1;
  auto running = std::make_shared<Running>(
      api, std::move(request), models_[model].name, std::move(prompts),
      std::move(stops), generator.tokenizer.get());
  auto answers = engine_->Submit(std::move(texts));
  if (absl::IsInvalidArgument(answers.status()) && several) {
    return AboutField(answers.status(), "n", "invalid_value");
  }
  if (!answers.ok()) return AboutPrompt(api, answers.status());
  running->answers = *std::move(answers);
  return running;
}

absl::StatusOr<std::shared_ptr<Completions::Running>> Completions::StartInTurn(
    Api api, const std::string& body) const {
  if (body.size() <= kLargeBody) return Start(api, body);
  std::unique_lock<std::timed_mutex> turn(large_body_, std::defer_lock);
  const auto end = std::chrono::steady_clock::now() + kTurn;
  while (!turn.try_lock_for(kWait)) {
    if (server_->stopping() || std::chrono::steady_clock::now() > end) {
      return absl::ResourceExhaustedError(
          absl::StrCat("other requests of more than ", kLargeBody,
                       " bytes are being read: ask again later, or for less "
                       "at once"));
    }
  }
  auto started = Start(api, body);
  // What was parsed is free now, but this thread's arena would keep it.
  malloc_trim(0);
  return started;
}

void Completions::Complete(Api api, const httplib::Request& request,
                           httplib::Response* response) const {
  const absl::StatusOr<std::shared_ptr<Running>> started =
      StartInTurn(api, request.body);
  if (!started.ok()) return SendStatus(started.status(), response);
  const std::shared_ptr<Running>& running = *started;
  // An error that comes soon has an HTTP status of its own. Later the answer
  // has begun, by which a client that has left is noticed.
  running->first = running->answers->Next(kWait);
  if (running->first.has_value() && !running->first->status.ok()) {
    return SendStatus(running->first->status, response);
  }
  if (running->stream) {
    SendStream(running, response);
  } else {
    SendWhole(running, response);
  }
}

void Completions::SendStream(const std::shared_ptr<Running>& running,
                             httplib::Response* response) const {
  server_->SendEvents(
      [running]() -> absl::optional<std::string> {
        if (running->ended) return absl::nullopt;
        const absl::optional<AnswerPiece> piece = running->Next(kWait);
        if (!piece.has_value()) return "";
        std::string events;
        if (!std::exchange(running->begun, true)) {
          events = running->reply.FirstEvents();
        }
        if (!piece->status.ok()) {
          running->ended = true;
          return absl::StrCat(events, EventText(LateError(piece->status)));
        }
        absl::StrAppend(&events, running->reply.AddToStream(*piece));
        if (running->done()) {
          running->ended = true;
          absl::StrAppend(&events, running->reply.LastEvents());
        }
        return events;
      },
      response);
}

void Completions::SendWhole(const std::shared_ptr<Running>& running,
                            httplib::Response* response) const {
  // White space before a JSON text says nothing to a client, and to the server
  // whether there is one.
  server_->SendParts(
      "application/json", " ",
      [running]() -> absl::optional<std::string> {
        if (running->ended) return absl::nullopt;
        const auto end = std::chrono::steady_clock::now() + kWait;
        while (!running->done()) {
          const auto left = end - std::chrono::steady_clock::now();
          if (left.count() <= 0) return "";
          const absl::optional<AnswerPiece> piece =
              running->Next(std::chrono::ceil<std::chrono::milliseconds>(left));
          if (!piece.has_value()) return "";
          if (!piece->status.ok()) {
            // The HTTP status is on its way already.
            running->ended = true;
            return JsonText(LateError(piece->status));
          }
          running->reply.Add(*piece);
        }
        running->ended = true;
        return JsonText(running->reply.Whole());
      },
      response);
}

}  // namespace capstan
