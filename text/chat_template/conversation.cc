// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/conversation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "text/jinja/strings.h"

namespace capstan {
namespace {

using jinja::Dict;
using jinja::Sequence;
using jinja::Value;

const jinja::JsonFormat kCompact = {",", ":"};
// Shown in docs/chat_data.md: a model trained with this text must be prompted
// with it.
constexpr char kToolsHead[] =
    "Tools that you may call, each by a JSON object with its \"name\" and "
    "\"arguments\":\n";
constexpr char kFunctionCall[] = "function_call";
// transformers' _REASONING_FIELDS.
constexpr const char* kReasoning[] = {"reasoning_content", "thinking",
                                      "reasoning"};

template <typename... Parts>
absl::Status Bad(const Parts&... problem) {
  return absl::InvalidArgumentError(absl::StrCat(problem...));
}

absl::StatusOr<Value> ParseValue(absl::string_view json,
                                 absl::string_view what) {
  try {
    return Value::FromJson(json);
  } catch (const jinja::Error& error) {
    return Bad(what, " can't be read: ", error.what());
  }
}

// None for "" and for an empty list.
absl::StatusOr<Value> ListOf(absl::string_view json, const char* what) {
  if (json.empty()) return Value();
  CAPSTAN_ASSIGN_OR_RETURN(Value list,
                           ParseValue(json, absl::StrCat("\"", what, "\"")));
  if (list.is_none()) return list;
  if (!list.is_sequence()) {
    return Bad("\"", what, "\" is a ", list.TypeName(), ", not a list");
  }
  for (const Value& item : list.sequence()->items) {
    if (item.is_dict()) continue;
    return Bad("\"", what, "\" has a ", item.TypeName(),
               " in it, where an object should be");
  }
  return list.sequence()->items.empty() ? Value() : std::move(list);
}

absl::Status AddVariables(absl::string_view json, Dict* variables) {
  if (json.empty()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const Value value,
                           ParseValue(json, "\"chat_template_kwargs\""));
  if (value.is_none()) return absl::OkStatus();
  if (!value.is_dict()) {
    return Bad("\"chat_template_kwargs\" is a ", value.TypeName(),
               ", not an object");
  }
  for (const auto& [key, one] : value.dict()->items) {
    // What the renderer itself decides.
    for (const char* const own : {"messages", "add_generation_prompt",
                                  "continue_final_message", "chat_template"}) {
      if (key.string() == own) {
        return Bad("\"chat_template_kwargs\" can't set \"", own, "\"");
      }
    }
    variables->Set(key, one);
  }
  return absl::OkStatus();
}

// A content of parts as one text.
absl::StatusOr<Value> ContentOf(const Value& content) {
  if (content.is_string()) return content;
  if (!content.is_sequence()) {
    return Bad("has a \"content\" that is a ", content.TypeName(),
               ", not a text");
  }
  std::string text;
  for (const Value& part : content.sequence()->items) {
    const Value* const own =
        part.is_dict() ? part.dict()->Find("text") : nullptr;
    if (own == nullptr || !own->is_string()) {
      return Bad("has a part of \"content\" that isn't a text");
    }
    text += own->string();
  }
  return Value(std::move(text));
}

absl::StatusOr<Value> MessageOf(const Value& given) {
  if (!given.is_dict())
    return Bad("is a ", given.TypeName(), ", not an object");
  Dict message;
  const Value* reasoning = nullptr;
  for (const char* const name : kReasoning) {
    if (reasoning != nullptr && !reasoning->is_none()) break;
    reasoning = given.dict()->Find(name);
  }
  const bool reasons = reasoning != nullptr && !reasoning->is_none();
  if (reasons) message.Set("thinking", *reasoning);
  for (const auto& [key, value] : given.dict()->items) {
    if (value.is_none()) continue;
    if (key.string() != "content") {
      message.Set(key, value);
      continue;
    }
    CAPSTAN_ASSIGN_OR_RETURN(Value content, ContentOf(value));
    message.Set(key, std::move(content));
  }
  if (reasons) message.Set("reasoning_content", *reasoning);
  const Value* const role = message.Find("role");
  if (role == nullptr || !role->is_string()) return Bad("has no \"role\"");
  return Value::Of(std::move(message));
}

// A call as {"name": .., "arguments": ..}, whichever form it has.
absl::StatusOr<std::string> CallText(const Value& value) {
  const absl::Status wrong =
      Bad("has \"tool_calls\" that aren't objects with a function's name and "
          "arguments");
  const Value* call = &value;
  if (call->is_dict() && call->dict()->Find("function") != nullptr) {
    call = call->dict()->Find("function");
  }
  if (!call->is_dict()) return wrong;
  const Value* const name = call->dict()->Find("name");
  if (name == nullptr || !name->is_string()) return wrong;
  const Value* const given = call->dict()->Find("arguments");
  std::string arguments = "{}";
  if (given != nullptr && given->is_string()) {
    // OpenAI stores JSON as text, transformers the JSON itself.
    if (!given->string().empty()) arguments = given->string();
  } else if (given != nullptr && given->is_dict()) {
    arguments = ToJson(*given, kCompact);
  } else if (given != nullptr && !given->is_none()) {
    return wrong;
  }
  return absl::StrCat("{\"name\": ", ToJson(*name, kCompact),
                      ", \"arguments\": ", arguments, "}");
}

// {"name": .., "arguments": ..} as an entry of tool_calls; none if it isn't
// that.
absl::optional<Value> CallOf(const Value& call) {
  if (!call.is_dict()) return absl::nullopt;
  const Value* const name = call.dict()->Find("name");
  if (name == nullptr || !name->is_string()) return absl::nullopt;
  Dict made;
  made.Set("type", "function");
  made.Set("function", call);
  return Value::Of(std::move(made));
}

// The calls that a text is the JSON of; None if it isn't.
Value CallsIn(const std::string& text) {
  const absl::StatusOr<Value> json = ParseValue(text, "");
  if (!json.ok()) return Value();
  std::vector<Value> calls;
  const std::vector<Value> all =
      json->is_sequence() ? json->sequence()->items : std::vector<Value>{*json};
  for (const Value& one : all) {
    absl::optional<Value> call = CallOf(one);
    if (!call.has_value()) return Value();
    calls.push_back(*std::move(call));
  }
  return calls.empty() ? Value() : Value::List(std::move(calls));
}

}  // namespace

absl::StatusOr<Conversation> ConversationOf(const ChatInput& input) {
  Conversation made;
  if (input.messages_json.empty()) {
    for (const ChatMessage& message : input.messages) {
      Dict dict;
      dict.items.emplace_back("role", jinja::ValidText(message.role));
      dict.items.emplace_back("content", jinja::ValidText(message.content));
      made.messages.push_back(Value::Of(std::move(dict)));
    }
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(const Value list,
                             ParseValue(input.messages_json, "\"messages\""));
    if (!list.is_sequence()) return Bad("\"messages\" isn't a list");
    for (const Value& one : list.sequence()->items) {
      absl::StatusOr<Value> message = MessageOf(one);
      if (!message.ok()) {
        return Bad("message ", made.messages.size() + 1, " ",
                   message.status().message());
      }
      made.messages.push_back(*std::move(message));
    }
  }
  CAPSTAN_ASSIGN_OR_RETURN(made.tools, ListOf(input.tools, "tools"));
  CAPSTAN_ASSIGN_OR_RETURN(made.documents,
                           ListOf(input.documents, "documents"));
  CAPSTAN_RETURN_IF_ERROR(AddVariables(input.variables, &made.variables));
  CAPSTAN_RETURN_IF_ERROR(AddVariables(input.own_variables, &made.variables));
  return made;
}

const std::string& TextOf(const Value& message, absl::string_view key) {
  static const auto* const none = new std::string();
  const Value* const found = message.dict()->Find(key);
  return found != nullptr && found->is_string() ? found->string() : *none;
}

std::string RoleOf(const Value& message) {
  const std::string& role = TextOf(message, "role");
  return role == kFunctionCall ? "assistant" : role;
}

const Sequence* CallsOf(const Value& message) {
  const Value* const calls = message.dict()->Find("tool_calls");
  const Sequence* const list = calls == nullptr ? nullptr : calls->sequence();
  return list == nullptr || list->items.empty() ? nullptr : list;
}

Value With(const Value& message, absl::string_view key, Value value) {
  Dict dict = *message.dict();
  dict.Set(std::string(key), std::move(value));
  return Value::Of(std::move(dict));
}

void ReadCalls(Conversation* conversation) {
  for (Value& message : conversation->messages) {
    if (TextOf(message, "role") != kFunctionCall) continue;
    Value calls = CallsIn(TextOf(message, "content"));
    message = With(message, "role", "assistant");
    if (calls.is_none()) continue;
    message = With(With(message, "content", ""), "tool_calls", calls);
  }
}

absl::StatusOr<bool> WriteCallsAsText(Conversation* conversation) {
  bool any = false;
  for (size_t i = 0; i < conversation->messages.size(); ++i) {
    Value& message = conversation->messages[i];
    if (TextOf(message, "role") == kFunctionCall) {
      message = With(message, "role", "assistant");
    }
    const Value* const calls = message.dict()->Find("tool_calls");
    if (calls != nullptr && !calls->is_sequence()) {
      return Bad("message ", i + 1, " has \"tool_calls\" that aren't a list");
    }
    if (CallsOf(message) == nullptr) continue;
    any = true;
    std::vector<std::string> texts;
    for (const Value& call : CallsOf(message)->items) {
      absl::StatusOr<std::string> text = CallText(call);
      if (!text.ok()) {
        return Bad("message ", i + 1, " ", text.status().message());
      }
      texts.push_back(*std::move(text));
    }
    const std::string content = TextOf(message, "content");
    std::string text = absl::StrJoin(texts, ", ");
    if (texts.size() > 1) text = absl::StrCat("[", text, "]");
    Dict dict;
    for (const auto& [key, value] : message.dict()->items) {
      if (key.string() != "tool_calls") dict.Set(key, value);
    }
    dict.Set("content",
             absl::StrCat(content, content.empty() ? "" : "\n", text));
    message = Value::Of(std::move(dict));
  }
  return any;
}

absl::StatusOr<bool> WriteToolsAsText(absl::string_view tools,
                                      Conversation* conversation) {
  if (conversation->tools.is_none()) return false;
  std::vector<Value>& messages = conversation->messages;
  const std::string text = absl::StrCat(kToolsHead, tools);
  conversation->tools = Value();
  if (!messages.empty() && RoleOf(messages[0]) == "system") {
    const std::string& system = TextOf(messages[0], "content");
    messages[0] =
        With(messages[0], "content",
             absl::StrCat(system, system.empty() ? "" : "\n\n", text));
    return true;
  }
  Dict system;
  system.Set("role", "system");
  system.Set("content", text);
  messages.insert(messages.begin(), Value::Of(std::move(system)));
  return true;
}

}  // namespace capstan
