// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/turns.h"

#include <numeric>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/grpo/rewards/reply.h"
#include "plugins/grpo/rewards/row_field.h"
#include "plugins/sdk/lib/field_check.h"

namespace capstan::grpo {
namespace {

using Json = nlohmann::ordered_json;

void AddMessage(const Json& message, std::string* list) {
  if (list->empty()) {
    *list = "[";
  } else {
    list->back() = ',';
  }
  absl::StrAppend(list, JsonText(message), "]");
}

// Adds a turn of the model, which `sampled` ends with.
void AddTurn(SampledAnswer sampled, const Tokenizer& tokenizer, bool has_tools,
             Conversation* to) {
  auto turn = absl::MakeConstSpan(sampled.text).subspan(to->text.size());
  if (!sampled.truncated) turn.remove_suffix(1);
  to->last_turn = tokenizer.Decode(turn);
  to->text = std::move(sampled.text);
  to->log_probs.insert(to->log_probs.end(), sampled.log_probs.begin(),
                       sampled.log_probs.end());
  to->truncated = sampled.truncated;
  ++to->turn;
  if (!has_tools) return;
  AddMessage({{"role", "assistant"}, {"content", to->last_turn}},
             &to->messages);
}

// A message as templates see it: a text is what a tool says. Null if it is
// neither that nor an object with a role and a text, or is the model's own.
Json MessageOf(const Json& given) {
  if (given.is_string()) return {{"role", "tool"}, {"content", given}};
  const auto content = given.is_object() ? given.find("content") : given.end();
  if (!given.is_object() || content == given.end() || !content->is_string()) {
    return nullptr;
  }
  Json message = {{"role", "tool"}};
  message.update(given);
  message.erase("failed");
  const bool fits =
      message["role"].is_string() && message["role"] != "assistant";
  return fits ? message : Json(nullptr);
}

}  // namespace

int64_t Conversation::own() const {
  int64_t count = static_cast<int64_t>(text.size()) - prompt;
  for (size_t i = 0; i < told.size(); i += 2) count -= told[i + 1] - told[i];
  return count;
}

Answer Conversation::answer() const {
  Answer answer;
  answer.row = row;
  answer.prompt = question;
  answer.text = last_turn;
  answer.tokens = own();
  answer.truncated = truncated;
  answer.turn = turn;
  answer.messages = messages;
  return answer;
}

absl::StatusOr<ToolReply> ToolReplyOf(absl::string_view line) {
  const Json said = ParseJson<Json>(line);
  ToolReply reply;
  reply.messages = Json::array();
  if (said.is_null()) return reply;
  for (const Json& given : said.is_array() ? said : Json::array({said})) {
    Json message = MessageOf(given);
    const auto failed = given.is_object() ? given.find("failed") : given.end();
    const bool has_failed = given.is_object() && failed != given.end();
    if (message.is_null() || (has_failed && !failed->is_boolean())) {
      return absl::InvalidArgumentError(absl::StrCat(
          Quoted(line),
          " isn't null, what a tool says (a text), a message ({\"role\": "
          "\"tool\", \"content\": \"..\"}; not the assistant's), or a list of "
          "these"));
    }
    if (has_failed && failed->get<bool>()) ++reply.failures;
    reply.messages.push_back(std::move(message));
  }
  return reply;
}

absl::StatusOr<std::unique_ptr<ToolProgram>> ToolProgram::Create(
    const Tools& config) {
  CAPSTAN_RETURN_IF_ERROR(CheckField(config.max_turns() >= 0, "tools.max_turns",
                                     "0 or greater", config.max_turns()));
  auto tools = absl::WrapUnique(new ToolProgram);
  absl::StatusOr<std::unique_ptr<RestartedProgram>> program =
      RestartedProgram::Create(config.program());
  if (!program.ok()) {
    return FieldError(
        absl::StrCat("tools.program.", FieldOf(program.status()).value_or("")),
        program.status().message());
  }
  tools->program_ = *std::move(program);
  tools->max_turns_ = config.max_turns();
  return tools;
}

void ToolProgram::Prepare(const DatasetReader& data) {
  writer_ = std::make_unique<ReplyWriter>(data);
}

absl::StatusOr<std::vector<size_t>> ToolProgram::Reply(
    absl::Span<Conversation* const> conversations, int64_t max_new_tokens,
    const std::function<bool()>& wait) {
  struct Work {
    std::shared_ptr<RestartedProgram> program;
    std::vector<std::string> lines;
    std::vector<ToolReply> replies;
  };
  const auto work = std::make_shared<Work>(Work{program_});
  for (const Conversation* conversation : conversations) {
    work->lines.push_back(AnswerJson(conversation->answer()));
  }
  std::vector<ToolReply>& replies = work->replies;
  replies.resize(work->lines.size());
  side_.Begin([work] {
    return work->program->Ask(
        work->lines, [&work](size_t i, absl::string_view line) {
          CAPSTAN_ASSIGN_OR_RETURN(work->replies[i], ToolReplyOf(line));
          return absl::OkStatus();
        });
  });
  while (!side_.Ended()) {
    if (!wait()) return absl::CancelledError("tools were waited for");
  }
  CAPSTAN_RETURN_IF_ERROR(Annotate(side_.Take(), "the tools"));
  std::vector<size_t> on;
  for (size_t i = 0; i < replies.size(); ++i) {
    absl::StatusOr<bool> goes_on =
        Say(replies[i], max_new_tokens, conversations[i]);
    if (!goes_on.ok()) return Annotate(goes_on.status(), "the tools");
    if (*goes_on) on.push_back(i);
  }
  return on;
}

absl::StatusOr<bool> ToolProgram::Say(const ToolReply& reply,
                                      int64_t max_new_tokens,
                                      Conversation* conversation) {
  Conversation& to = *conversation;
  if (reply.messages.empty()) return false;
  to.calls += static_cast<int64_t>(reply.messages.size());
  to.failures += reply.failures;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> ids,
      writer_->Write(to.question, to.row, to.text.back(), reply.messages));
  const size_t size = to.text.size() + ids.size();
  if (static_cast<int64_t>(size) - to.prompt >= max_new_tokens) {
    to.truncated = true;
    return false;
  }
  to.told.push_back(static_cast<int64_t>(to.text.size()));
  to.told.push_back(static_cast<int64_t>(size));
  to.text.insert(to.text.end(), ids.begin(), ids.end());
  to.log_probs.resize(size - to.prompt, 0.0f);
  for (const Json& message : reply.messages) AddMessage(message, &to.messages);
  return true;
}

absl::StatusOr<std::vector<Conversation>> Converse(
    TokenModel* model, absl::Span<const Question> questions,
    absl::Span<const std::string> rows, const AnswerOptions& options,
    const Tokenizer& tokenizer, ToolProgram* tools,
    const std::function<bool(bool done)>& all_done, UnitRunner& runner) {
  std::vector<Conversation> all;
  std::vector<uint64_t> seeds;
  for (size_t q = 0; q < questions.size(); ++q) {
    for (const uint64_t seed : questions[q].seeds) {
      Conversation& one = all.emplace_back();
      one.row = rows[q];
      one.question = tokenizer.Decode(questions[q].prompt);
      one.text = questions[q].prompt;
      one.prompt = static_cast<int64_t>(one.text.size());
      seeds.push_back(seed);
    }
  }
  std::vector<size_t> speaking(all.size());  // whose turn it is
  std::iota(speaking.begin(), speaking.end(), 0);
  std::vector<Question> further;
  // Other ranks may be at their forwards.
  const auto wait = [&] {
    if (all_done(false)) return false;
    RunIdleForward(model, runner);
    return true;
  };
  for (int64_t turn = 1; !speaking.empty(); ++turn) {
    CAPSTAN_ASSIGN_OR_RETURN(
        std::vector<SampledAnswer> sampled,
        SampleAnswers(model, turn == 1 ? questions : further, options, all_done,
                      runner));
    std::vector<size_t> ended;
    std::vector<Conversation*> asking;
    for (size_t i = 0; i < speaking.size(); ++i) {
      Conversation& one = all[speaking[i]];
      AddTurn(std::move(sampled[i]), tokenizer, tools != nullptr, &one);
      if (one.truncated) continue;
      ended.push_back(speaking[i]);
      asking.push_back(&one);
    }
    if (tools == nullptr || turn == tools->max_turns()) break;
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::vector<size_t> on,
        tools->Reply(asking, options.max_new_tokens, wait));
    speaking.clear();
    further.clear();
    for (const size_t i : on) {
      const Conversation& one = *asking[i];
      speaking.push_back(ended[i]);
      // Draws are keyed by seed and place in the text.
      further.push_back({one.text,
                         {seeds[ended[i]]},
                         static_cast<int64_t>(one.text.size()) - one.prompt});
    }
  }
  AwaitOthers(model, all_done, runner);
  return all;
}

}  // namespace capstan::grpo
