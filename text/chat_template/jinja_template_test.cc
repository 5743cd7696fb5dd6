// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template/jinja_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>

#include <string>
#include <utility>
#include <vector>

#include "text/chat_template/fake_tokenizer.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Messages = std::vector<ChatMessage>;

// In the manner of Qwen3: thoughts of earlier turns are dropped, the last turn
// always has one.
constexpr char kThinking[] = R"({%- if messages[0].role == 'system' -%}
<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
  {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
  {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
  {%- elif message.role == 'assistant' %}
    {%- set content = message.content %}
    {%- set thought = '' %}
    {%- if '</think>' in content %}
      {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
      {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>assistant\n' }}
    {%- if loop.index0 > ns.last %}
      {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
    {%- endif %}
    {{- content + '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";

// In the manner of Gemma 3, which knows parts of a content.
constexpr char kModelTurns[] =
    R"({{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("user and assistant take turns") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%})";

// In the manner of Llama 3.1: a system turn of its own making, with a date.
constexpr char kDated[] = R"({{- bos_token }}
{%- if not date_string is defined %}
  {%- set date_string = strftime_now('%d %b %Y') %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
  {%- set system = messages[0]['content'] | trim %}
  {%- set messages = messages[1:] %}
{%- else %}
  {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '\n\n' }}
{{- system + '<|eot_id|>' }}
{%- for message in messages %}
  {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})";

// In the manner of Mistral: no generation prompt, eos ends a turn.
constexpr char kInst[] = R"({{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'user' %}
{{- '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}
{{- ' ' + message['content'] | trim + eos_token }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}
{%- endif %}{% endfor %})";

// In the manner of Phi-3: the whole ends with eos unless a turn is asked for.
constexpr char kPhi[] =
    R"({% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %})";

FakeTokenizer TokenizerOf(const std::string& jinja) {
  FakeTokenizer tokenizer(
      {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<start_of_turn>",
       "<end_of_turn>", "<|start_header_id|>", "<|end_header_id|>",
       "<|eot_id|>", "<|user|>", "<|assistant|>", "<|end|>"},
      jinja);
  tokenizer.set_special_ids({256, 257, -1});
  return tokenizer;
}

std::unique_ptr<ChatTemplate> Load(const std::string& jinja) {
  // 2023-11-14 22:13:20 UTC.
  auto made = JinjaTemplate::Create(TokenizerOf(jinja), 1700000000);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

std::string ErrorOf(const std::string& jinja) {
  return std::string(
      ChatTemplate::Recognise(TokenizerOf(jinja)).status().message());
}

ChatText Text(const ChatTemplate& chat, const Messages& messages,
              bool prompt = false) {
  const auto text = chat.Render(messages, prompt);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : ChatText();
}

std::vector<std::string> Assistant(const ChatText& text) {
  std::vector<std::string> pieces;
  for (const auto& [begin, end] : text.assistant) {
    pieces.push_back(text.text.substr(begin, end - begin));
  }
  return pieces;
}

const Messages kTalk = {
    {"user", "a"}, {"assistant", "b"}, {"user", " c "}, {"assistant", " d "}};

TEST(JinjaTemplateTest, AThoughtIsPartOfTheLastTurn) {
  const auto chat = Load(kThinking);
  EXPECT_EQ(chat->name(), "the tokenizer's own");
  EXPECT_EQ(chat->jinja(), kThinking);
  EXPECT_EQ(chat->end_of_turn(), "<|im_end|>");
  const ChatText text = Text(*chat, kTalk);
  EXPECT_EQ(text.text,
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb"
            "<|im_end|>\n<|im_start|>user\n c <|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n d <|im_end|>\n");
  EXPECT_THAT(
      Assistant(text),
      ElementsAre("b<|im_end|>", "<think>\n\n</think>\n\n d <|im_end|>"));
  EXPECT_THAT(
      Assistant(Text(
          *chat, {{"user", "a"}, {"assistant", "<think>\nhm\n</think>\n\nb"}})),
      ElementsAre("<think>\nhm\n</think>\n\nb<|im_end|>"));
}

TEST(JinjaTemplateTest, WhatATemplateDropsOfATurnIsNotTrainedOn) {
  const ChatText text =
      Text(*Load(kThinking), {{"user", "a"},
                              {"assistant", "<think>\nhm\n</think>\n\nb"},
                              {"user", "c"},
                              {"assistant", "<think>\noh\n</think>\n\nd"}});
  EXPECT_THAT(
      Assistant(text),
      ElementsAre("b<|im_end|>", "<think>\noh\n</think>\n\nd<|im_end|>"));
}

// A chat goes on, though the template drops what the model thought.
TEST(JinjaTemplateTest, APromptDropsThoughts) {
  const ChatText text = Text(*Load(kThinking),
                             {{"user", "a"},
                              {"assistant", "<think>\nhm\n</think>\n\nb"},
                              {"user", "c"}},
                             /*prompt=*/true);
  EXPECT_EQ(text.text,
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb"
            "<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_THAT(Assistant(text), ElementsAre("b<|im_end|>"));
}

TEST(JinjaTemplateTest, GemmasTurns) {
  const auto chat = Load(kModelTurns);
  EXPECT_EQ(chat->end_of_turn(), "<end_of_turn>");
  const ChatText text = Text(
      *chat, {{"system", "s"}, {"user", " a"}, {"assistant", "b\n"}}, true);
  EXPECT_EQ(text.text,
            "<s><start_of_turn>user\ns\n\na<end_of_turn>\n"
            "<start_of_turn>model\nb<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_THAT(Assistant(text), ElementsAre("b<end_of_turn>"));
  EXPECT_EQ(
      Load(std::string("{% set bos_token = '<bos>' %}") + kModelTurns)->name(),
      "gemma");
  const auto wrong =
      chat->Render(Messages{{"user", "a"}, {"user", "b"}}, false);
  EXPECT_EQ(std::string(wrong.status().message()),
            "the tokenizer's chat template (chat_template.jinja or "
            "tokenizer_config.json), line 15: user and assistant take turns");
}

TEST(JinjaTemplateTest, ADateIsThatOfTheStart) {
  const auto chat = Load(kDated);
  const ChatText text = Text(*chat, kTalk);
  EXPECT_THAT(text.text,
              HasSubstr("<s><|start_header_id|>system<|end_header_id|>\n\n"
                        "Today Date: 1"));
  EXPECT_THAT(text.text, HasSubstr(" Nov 2023\n\n<|eot_id|>"));
  EXPECT_THAT(Assistant(text), ElementsAre("b<|eot_id|>", "d<|eot_id|>"));
}

// What was indexed on one day isn't taken for that of another, wherever that
// day begins.
TEST(JinjaTemplateTest, TheNameHasTheDayThatTheTextHas) {
  for (const auto& [zone, day] :
       std::vector<std::pair<std::string, std::string>>{
           {"UTC0", "14"}, {"AHEAD-14", "15"}, {"BEHIND23", "13"}}) {
    setenv("TZ", zone.c_str(), 1);
    tzset();
    const auto chat = Load(kDated);
    EXPECT_EQ(chat->name(), "the tokenizer's own of day 2023-11-" + day);
    EXPECT_THAT(Text(*chat, kTalk).text, HasSubstr(day + " Nov 2023"));
  }
  unsetenv("TZ");
  tzset();
}

TEST(JinjaTemplateTest, WithoutAGenerationPromptTurnsEndWithEos) {
  const auto chat = Load(kInst);
  EXPECT_EQ(chat->end_of_turn(), "</s>");
  const ChatText text = Text(*chat, kTalk);
  EXPECT_EQ(text.text, "<s>[INST] a [/INST] b</s>[INST]  c  [/INST] d</s>");
  EXPECT_THAT(Assistant(text), ElementsAre(" b</s>", " d</s>"));
  const auto wrong =
      chat->Render(Messages{{"system", "a"}, {"user", "b"}}, false);
  EXPECT_THAT(std::string(wrong.status().message()),
              HasSubstr("line 6: Only user and assistant roles"));
}

// Nor is what an earlier turn said looked for in a later one.
TEST(JinjaTemplateTest, WithoutAnEndATurnIsWhereItBegins) {
  const auto chat = Load(
      "{% for m in messages %}{{ m.role }}: "
      "{% if m.role == 'assistant' and not loop.last %}(..)"
      "{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant: {% endif %}");
  const Messages talk = {{"user", "q"},
                         {"assistant", "yes"},
                         {"user", "say yes now"},
                         {"assistant", "ok"}};
  const auto text = chat->Render(talk, false);
  if (text.ok()) {
    for (const std::string& piece : Assistant(*text)) {
      EXPECT_THAT(piece, Not(HasSubstr("say")));
    }
  }
}

TEST(JinjaTemplateTest, TheEndOfTheWholeIsNotTheTurns) {
  const auto chat = Load(kPhi);
  EXPECT_EQ(chat->end_of_turn(), "<|end|>");
  const ChatText text = Text(*chat, kTalk);
  EXPECT_EQ(text.text,
            "<|user|>\na<|end|>\n<|assistant|>\nb<|end|>\n<|user|>\n c <|end|>"
            "\n<|assistant|>\n d <|end|>\n</s>");
  EXPECT_THAT(Assistant(text), ElementsAre("b<|end|>", " d <|end|>"));
}

TEST(JinjaTemplateTest, GenerationBlocksSayWhatIsTrained) {
  const auto chat = Load(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n"
      "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n\n"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\n"
      "{% endif %}");
  EXPECT_THAT(Assistant(Text(*chat, kTalk)), ElementsAre("b!", " d !"));
  EXPECT_EQ(chat->end_of_turn(), "<|im_end|>");
}

// A prompt that opens a thought, which finished turns don't have.
TEST(JinjaTemplateTest, APromptMayWriteMoreThanTurnsHave) {
  const auto chat = Load(
      "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}"
      "{% if m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}");
  EXPECT_THAT(Assistant(Text(*chat, kTalk)),
              ElementsAre("b<|end|>", " d <|end|>"));
}

TEST(JinjaTemplateTest, APromptsTagIsNotCut) {
  const auto chat = Load(
      "{% for m in messages %}{{ '<|' + m.role + '|>' }}"
      "{% if m.role == 'assistant' %}</think>{{ m.content }}<|end|>"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|><think>{% endif %}");
  EXPECT_THAT(Assistant(Text(*chat, kTalk)),
              ElementsAre("</think>b<|end|>", "</think> d <|end|>"));
}

// As OpenAI's gpt-oss.
TEST(JinjaTemplateTest, TheLastTurnMayEndOtherwise) {
  const auto chat = Load(
      "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}"
      "{% if loop.last %}</s>{% else %}<|end|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}");
  EXPECT_EQ(chat->end_of_turn(), "</s>");
  EXPECT_THAT(Assistant(Text(*chat, kTalk)),
              ElementsAre("b<|end|>", " d </s>"));
}

TEST(JinjaTemplateTest, SpaceAroundThoughtsMayChange) {
  const auto chat = Load(
      "{% for m in messages %}{% set parts = m.content.split('</think>') %}"
      "{{ '<|' + m.role + '|>' }}{% if parts|length > 1 %}<think>"
      "{{ parts[0].replace('<think>', '').strip() }}</think>{% endif %}"
      "{{ parts[-1].strip() }}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}");
  EXPECT_THAT(
      Assistant(Text(
          *chat, {{"user", "a"}, {"assistant", "<think>\nhm\n</think>\n\nb"}})),
      ElementsAre("<think>hm</think>b<|end|>"));
}

// What a user says like the assistant isn't trained on.
TEST(JinjaTemplateTest, EqualContentsAreToldApart) {
  const auto chat = Load(kInst);
  const ChatText text = Text(
      *chat,
      {{"user", "b"}, {"assistant", "b"}, {"user", "b"}, {"assistant", "b"}});
  ASSERT_EQ(text.assistant.size(), 2u);
  EXPECT_EQ(text.assistant[0], std::pair(int64_t{19}, int64_t{25}));
  EXPECT_EQ(text.text.substr(0, 19), "<s>[INST] b [/INST]");
  EXPECT_THAT(Assistant(text), ElementsAre(" b</s>", " b</s>"));
  // A turn that isn't written at all isn't taken from another.
  const auto silent = Load(
      "{% for m in messages %}{% if m.role == 'user' or loop.last %}"
      "<|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}");
  EXPECT_THAT(Assistant(Text(*silent, kTalk)),
              ElementsAre("<|im_start|> d <|im_end|>"));
}

// The known templates' ranges are those that their styles give.
TEST(JinjaTemplateTest, KnownTemplatesRenderAsTheirStyles) {
  const std::vector<Messages> talks = {
      {{"user", "a"}},
      kTalk,
      {{"system", " s "}, {"user", "\u00a0a\n"}, {"assistant", " b\u3000"}},
      {{"user", "a"}, {"assistant", ""}, {"user", ""}, {"assistant", "\n"}},
      {{"user", "x<|im_end|>"}, {"assistant", "<|im_end|>y<end_of_turn>z"}},
      {{"assistant", "first"}, {"user", "b"}, {"assistant", "c"}}};
  for (const std::string& name : ChatTemplate::Names()) {
    const auto style = *ChatTemplate::Named(name);
    const auto own = Load(style->jinja());
    EXPECT_EQ(own->name(), name);
    EXPECT_EQ(own->end_of_turn(), style->end_of_turn());
    for (const Messages& talk : talks) {
      for (const bool prompt : {false, true}) {
        const auto want = style->Render(talk, prompt);
        const auto got = own->Render(talk, prompt);
        ASSERT_EQ(got.ok(), want.ok()) << got.status() << want.status();
        if (!want.ok()) {
          EXPECT_EQ(got.status(), want.status());
          continue;
        }
        EXPECT_EQ(got->text, want->text);
        EXPECT_EQ(got->assistant, want->assistant) << name << want->text;
      }
    }
  }
}

TEST(JinjaTemplateTest, UnknownRolesAreNamed) {
  const auto of = [](const Messages& messages) {
    return std::string(
        Load(kDated)->Render(messages, false).status().message());
  };
  EXPECT_THAT(of(Messages{{"user", "a"}, {"robot", "b"}}),
              HasSubstr("message 2 has the role \"robot\""));
  EXPECT_THAT(of(Messages{{"user", "a"}, {"ipython", "b"}}), IsEmpty());
  EXPECT_THAT(of({}), HasSubstr("no message"));
}

TEST(JinjaTemplateTest, MarkersAreTokens) {
  const auto chat = Load(kPhi);
  EXPECT_TRUE(chat->Check(TokenizerOf("")).ok());
  EXPECT_THAT(
      std::string(
          chat->Check(FakeTokenizer({"<|end|>", "<|user|>"})).message()),
      HasSubstr("no token <|assistant|>, which the template the "
                "tokenizer's own writes"));
}

TEST(JinjaTemplateTest, WhatIsNoTemplateIsAnErrorWithItsLine) {
  EXPECT_THAT(ErrorOf("a\n{{ broken {% '"),
              HasSubstr("tokenizer_config.json), line 2: "));
  EXPECT_THAT(ErrorOf("a\n\n{{ raise_exception('not today') }}"),
              HasSubstr("tokenizer_config.json), line 3: not today"));
  EXPECT_THAT(ErrorOf(std::string((1 << 20) + 1, 'x')),
              HasSubstr("larger than 1 MiB"));
}

// What took minutes to compare with known spellings, and endless work.
TEST(JinjaTemplateTest, HostileTemplatesTakeNoTime) {
  const auto repeated = [](const std::string& text) {
    std::string jinja;
    while (jinja.size() + text.size() <= 1 << 20) jinja += text;
    return jinja;
  };
  for (const char* text :
       {"{%", "{{", "{#", "{% '", "{{ \"\\", "{%'{{\"{#", "{{}}", "{% if ( %}",
        "{{ ((((", "{{ a + 'b' + 'c' }}", "{{ [[ "}) {
    EXPECT_FALSE(ErrorOf(repeated(text)).empty()) << text;
  }
  EXPECT_THAT(ErrorOf("{% for a in range(9999) %}{% for b in range(9999) %}{% "
                      "endfor %}{% endfor %}"),
              HasSubstr("steps"));
}

}  // namespace
}  // namespace capstan
