// SPDX-License-Identifier: Apache-2.0
//
// What we make of a Hugging Face or PEFT folder, for check_folders.py.
//
//   answers FOLDER < questions.json > answers.json
//
// Questions: {"ids": [[1, 2], ..], "texts": ["..", ..], "conversations":
// [{"messages": [{"role", "content"}, ..], "generation_prompt": true}, ..]},
// each of which may be missing. Answers, in their order: "logits" (of each row
// of ids, [T][V], computed in float32), "tokens" and "decoded" (of each text),
// "rendered" (of each conversation).
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "base/status.h"
#include "host/plugins/plugin_host.h"
#include "inference/load/generator.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/session/run_folders.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

absl::StatusOr<Json> Logits(const std::string& folder, const Json& rows) {
  CAPSTAN_ASSIGN_OR_RETURN(
      const Generator generator,
      LoadGenerator(folder, /*adapter=*/{},
                    std::make_unique<PluginHost>(std::vector<std::string>{
                        ExecutableFolder() + "/../../trainer/plugins"}),
                    RunFoldersHere()));
  TokenModel* const model = generator.model->token_model();
  if (model == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": not a model of token sequences"));
  }
  at::NoGradGuard no_grad;
  PlainRunner runner;
  Json answers = Json::array();
  for (const Json& row : rows) {
    const std::vector<int64_t> ids = row.get<std::vector<int64_t>>();
    TokenInput input;
    input.tokens = at::empty({1, static_cast<int64_t>(ids.size())}, at::kLong);
    std::memcpy(input.tokens.mutable_data_ptr<int64_t>(), ids.data(),
                ids.size() * sizeof(int64_t));
    const at::Tensor logits = model->Logits(input, runner);
    const float* values = logits.const_data_ptr<float>();
    Json answer = Json::array();
    for (size_t t = 0; t < ids.size(); ++t) {
      answer.push_back(std::vector<float>(values + t * logits.size(2),
                                          values + (t + 1) * logits.size(2)));
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

void AnswerTexts(const Tokenizer& tokenizer, const Json& texts, Json* answers) {
  for (const Json& text : texts) {
    const std::vector<int64_t> ids =
        tokenizer.Encode(text.get_ref<const std::string&>());
    (*answers)["tokens"].push_back(ids);
    (*answers)["decoded"].push_back(tokenizer.Decode(ids));
  }
}

absl::Status AnswerConversations(const Tokenizer& tokenizer,
                                 const Json& conversations, Json* answers) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ChatTemplate> chat,
                           ChatTemplate::Recognise(tokenizer));
  for (const Json& conversation : conversations) {
    std::vector<ChatMessage> messages;
    for (const Json& message : conversation["messages"]) {
      messages.push_back({message["role"], message["content"]});
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        const ChatText rendered,
        chat->Render(messages, conversation["generation_prompt"]));
    (*answers)["rendered"].push_back(rendered.text);
  }
  return absl::OkStatus();
}

absl::Status Answer(const std::string& folder) {
  const Json questions =
      Json::parse(std::cin, nullptr, /*allow_exceptions=*/false);
  if (!questions.is_object()) {
    return absl::InvalidArgumentError("standard input: no JSON object");
  }
  Json answers = Json::object();
  if (questions.contains("ids")) {
    CAPSTAN_ASSIGN_OR_RETURN(answers["logits"],
                             Logits(folder, questions["ids"]));
  }
  if (questions.contains("texts") || questions.contains("conversations")) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                             LoadTokenizer(folder));
    AnswerTexts(*tokenizer, questions.value("texts", Json::array()), &answers);
    if (questions.contains("conversations")) {
      CAPSTAN_RETURN_IF_ERROR(AnswerConversations(
          *tokenizer, questions["conversations"], &answers));
    }
  }
  // What isn't UTF-8 is written as U+FFFD, as Python decodes it.
  std::cout << answers.dump(-1, ' ', false, Json::error_handler_t::replace)
            << std::endl;
  return absl::OkStatus();
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: answers FOLDER < questions.json\n";
    return 2;
  }
  absl::Status status;
  try {
    status = capstan::Answer(argv[1]);
  } catch (...) {
    status = capstan::CurrentExceptionToStatus();
  }
  if (!status.ok()) std::cerr << "ERROR: " << status.message() << std::endl;
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
