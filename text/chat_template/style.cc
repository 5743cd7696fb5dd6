// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/style.h"

namespace capstan {
namespace {

ChatStyle ChatMl() {
  ChatStyle style;
  style.name = "chatml";
  style.head_begin = "<|im_start|>";
  style.head_end = "\n";
  style.turn_end = "<|im_end|>";
  style.between_turns = "\n";
  style.assistant = "assistant";
  style.roles = {"system", "user", "assistant", "tool"};
  style.special_tokens = {"<|im_start|>", "<|im_end|>"};
  style.jinja =
      R"({% for message in messages %})"
      R"({{ '<|im_start|>' + message['role'] + '\n' + message['content'] + )"
      R"('<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %})"
      R"({{ '<|im_start|>assistant\n' }}{% endif %})";
  return style;
}

// SmolLM2 Instruct: ChatML with its own default system turn.
ChatStyle SmolLm2() {
  ChatStyle style = ChatMl();
  style.name = "smollm2";
  style.default_system =
      "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
  style.jinja =
      R"({% for message in messages %}{% if loop.first and )"
      R"(messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n)" +
      style.default_system +
      R"(<|im_end|>\n' }}{% endif %})"
      R"({{ '<|im_start|>' + message['role'] + '\n' + message['content'] + )"
      R"('<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %})"
      R"({{ '<|im_start|>assistant\n' }}{% endif %})";
  return style;
}

// The turns of Llama 3's template and its successors.
constexpr char kHeaderTurns[] =
    R"({{ '<|start_header_id|>' + message['role'] + )"
    R"('<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }})"
    R"({% endfor %})";
constexpr char kHeaderPrompt[] =
    R"({{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }})";
ChatStyle HeaderStyle(const std::string& name, const std::string& bos) {
  ChatStyle style;
  style.name = name;
  style.bos = bos;
  style.head_begin = "<|start_header_id|>";
  style.head_end = "<|end_header_id|>\n\n";
  style.turn_end = "<|eot_id|>";
  style.assistant = "assistant";
  style.trims = true;
  style.roles = {"system", "user", "assistant", "tool", "ipython"};
  style.special_tokens = {bos, "<|start_header_id|>", "<|end_header_id|>",
                          "<|eot_id|>"};
  style.jinja = "{% for message in messages %}{% if loop.first %}{{ '" + bos +
                "' }}{% endif %}" + kHeaderTurns;
  return style;
}

ChatStyle Llama3() {
  ChatStyle style = HeaderStyle("llama3", "<|begin_of_text|>");
  const std::string prompt = std::string("{% if add_generation_prompt %}") +
                             kHeaderPrompt + "{% endif %}";
  style.jinja += prompt;
  return style;
}

// Llama 3's turns; always ends with the assistant's head.
ChatStyle Llada() {
  ChatStyle style = HeaderStyle("llada", "<|startoftext|>");
  style.always_prompts = true;
  style.jinja += kHeaderPrompt;
  return style;
}

constexpr char kGemmaLoop[] =
    R"({% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %})"
    R"({{ raise_exception('Conversation roles must alternate )"
    R"(user/assistant/user/assistant/...') }}{% endif %})"
    R"({% if message['role'] == 'assistant' %}{% set role = 'model' %})"
    R"({% else %}{% set role = message['role'] %}{% endif %})";
constexpr char kGemmaPrompt[] = R"({% endfor %}{% if add_generation_prompt %})"
                                R"({{ '<start_of_turn>model\n' }}{% endif %})";
constexpr char kGemmaSplit[] =
    R"({% set loop_messages = messages[1:] %}{% else %})"
    R"({% set first_user_prefix = '' %}{% set loop_messages = messages %})"
    R"({% endif %}{% for message in loop_messages %})";
constexpr char kGemmaHead[] = R"({{ '<start_of_turn>' + role + '\n' + )"
                              R"((first_user_prefix if loop.first else '') }})";

// Gemma 2, which rejects system turns, and Gemma 3, which prefixes them to the
// first user turn.
ChatStyle Gemma() {
  ChatStyle style;
  style.name = "gemma";
  style.bos = "<bos>";
  style.head_begin = "<start_of_turn>";
  style.head_end = "\n";
  style.turn_end = "<end_of_turn>";
  style.between_turns = "\n";
  style.assistant = "model";
  style.trims = true;
  style.alternates = true;
  style.roles = {"system", "user", "assistant"};
  style.special_tokens = {"<bos>", "<start_of_turn>", "<end_of_turn>"};
  const std::string loop = kGemmaLoop;
  style.jinja =
      R"({{ '<bos>' }}{% if messages[0]['role'] == 'system' %})"
      R"({% set first_user_prefix = messages[0]['content'] + '\n\n' %})" +
      std::string(kGemmaSplit) + loop + kGemmaHead +
      R"({{ message['content'] | trim + '<end_of_turn>\n' }})" + kGemmaPrompt;
  return style;
}

}  // namespace

const std::vector<ChatStyle>& ChatStyles() {
  static const auto* const styles = new std::vector<ChatStyle>{
      ChatMl(), SmolLm2(), Llama3(), Gemma(), Llada()};
  return *styles;
}

}  // namespace capstan
