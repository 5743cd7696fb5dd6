// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace capstan::chat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "role:content" of each message, or the error.
std::vector<std::string> Messages(const std::string& json, Kind kind = AUTO) {
  RowParser parser;
  Row row;
  const absl::Status status = parser.Parse(json, json.size(), kind, &row);
  if (!status.ok()) return {"ERROR " + std::string(status.message())};
  std::vector<std::string> out;
  for (const ChatMessage& m : row.messages()) {
    out.push_back(m.role + ":" + m.content);
  }
  return out;
}

TEST(RowTest, KnowsKindsByTheirKeys) {
  EXPECT_THAT(Messages(R"({"topic": 3, "messages": [)"
                       R"({"role": "user", "content": "a\n\u00e9", "id": 1},)"
                       R"({"content": "b", "role": "assistant"}]})"),
              ElementsAre("user:a\né", "assistant:b"));
  EXPECT_THAT(Messages(R"({"system": "s", "user": "u", "assistant": "a"})"),
              ElementsAre("system:s", "user:u", "assistant:a"));
  EXPECT_THAT(Messages(R"({"system": null, "user": "u", "assistant": "a"})"),
              ElementsAre("user:u", "assistant:a"));
  EXPECT_THAT(Messages(R"({"question": "q", "answer": "a"})"),
              ElementsAre("user:q", "assistant:a"));
  EXPECT_THAT(Messages(R"({"instruction": "i", "input": "", "output": "o"})"),
              ElementsAre("user:i", "assistant:o"));
  EXPECT_THAT(Messages(R"({"instruction": "i", "input": "x", "output": "o",)"
                       R"("system": "s", "history": [["a", "b"]]})"),
              ElementsAre("system:s", "user:a", "assistant:b", "user:i\nx",
                          "assistant:o"));
  EXPECT_THAT(Messages(R"({"conversations": [{"from": "system", "value": "s"},)"
                       R"({"from": "human", "value": "h"},)"
                       R"({"from": "function_call", "value": "f"},)"
                       R"({"from": "observation", "value": "o"},)"
                       R"({"from": "gpt", "value": "g"}]})"),
              ElementsAre("system:s", "user:h", "assistant:f", "tool:o",
                          "assistant:g"));
}

TEST(RowTest, KnowsTheSidesByAnyOfTheirUsualNames) {
  const auto pair = ElementsAre("user:q", "assistant:a");
  for (const char* json :
       {R"({"input": "q", "target": "a"})",
        R"({"prompt": "q", "response": "a"})",
        R"({"query": "q", "answer": "a"})", R"({"input": "q", "output": "a"})",
        R"({"user": "q", "response": "a"})", R"(["q", {"answer": "a"}])",
        R"(["q", {"target": "a", "id": 3}])", R"(["q", "a"])"}) {
    EXPECT_THAT(Messages(json), pair) << json;
  }
  EXPECT_THAT(Messages(R"({"system": "s", "input": "q", "target": "a"})"),
              ElementsAre("system:s", "user:q", "assistant:a"));
  EXPECT_THAT(Messages(R"({"instruction": "i", "context": "c", "response": )"
                       R"("r", "category": "x"})"),
              ElementsAre("user:i\nc", "assistant:r"));
  // The keys of one list under the name of the other.
  EXPECT_THAT(Messages(R"({"conversations": [{"role": "user", "content": "q"},)"
                       R"({"role": "assistant", "content": "a"}]})"),
              pair);
  EXPECT_THAT(Messages(R"({"messages": [{"from": "human", "value": "q"},)"
                       R"({"from": "gpt", "value": "a"}]})"),
              pair);
}

TEST(RowTest, ARowThatNobodyKnowsIsShown) {
  EXPECT_THAT(Messages(R"({"frage": "q\n", "antwort": 3})"),
              ElementsAre(::testing::EndsWith(
                  R"(or text; it is {"frage":"q\n","antwort":3})")));
  const std::string row =
      Messages("{\"a\": \"" + std::string(5000, 'x') + "\"}")[0];
  EXPECT_LT(row.size(), 700u);
  EXPECT_THAT(row, ::testing::EndsWith("xxx.."));
  EXPECT_THAT(Messages("[1, 2]"), ElementsAre(HasSubstr("is a list, not")));
  EXPECT_THAT(Messages(R"(["q", {"other": "a"}])"),
              ElementsAre(HasSubstr("second element is no answer")));
}

TEST(RowTest, ANamedKindRules) {
  const std::string both = R"({"text": "t", "question": "q", "answer": "a"})";
  EXPECT_THAT(Messages(both), ElementsAre("user:q", "assistant:a"));
  RowParser parser;
  Row row;
  ASSERT_TRUE(parser.Parse(both, both.size(), TEXT, &row).ok());
  EXPECT_TRUE(row.is_text);
  EXPECT_EQ(row.completion, "t");
  EXPECT_THAT(Messages(both, MESSAGES),
              ElementsAre("ERROR has no \"messages\""));
}

TEST(RowTest, PromptAndCompletionAreTextsOrMessages) {
  RowParser parser;
  Row row;
  const std::string texts = R"({"prompt": "p", "completion": " c"})";
  ASSERT_TRUE(parser.Parse(texts, texts.size(), AUTO, &row).ok());
  EXPECT_TRUE(row.is_text);
  EXPECT_EQ(row.prompt + "|" + row.completion, "p| c");
  const std::string lists =
      R"({"prompt": [{"role": "user", "content": "p"}],)"
      R"("completion": [{"role": "assistant", "content": "c"}]})";
  ASSERT_TRUE(parser.Parse(lists, lists.size(), AUTO, &row).ok());
  EXPECT_FALSE(row.is_text);
  EXPECT_EQ(row.prompt_messages, 1);
  EXPECT_EQ(row.messages().size(), 2);
  EXPECT_THAT(Messages(R"({"prompt": [{"role": "user", "content": "p"}],)"
                       R"("completion": "c"})"),
              ElementsAre(HasSubstr("\"completion\" is a text, not a list")));
}

// An integer that fits no type of ours, in an unused field.
TEST(RowTest, NumbersMayBeOfAnySize) {
  for (const char* number :
       {"18446744073709551616", "1000000000000000019884624838656", "1e400",
        "-99999999999999999999"}) {
    const std::string row =
        std::string(R"({"id": )") + number +
        R"(, "messages": [{"role": "user", "content": "1e400"}]})";
    EXPECT_THAT(Messages(row), ElementsAre("user:1e400")) << number;
  }
  EXPECT_THAT(Messages(R"({"text": 18446744073709551616})"),
              ElementsAre(HasSubstr("\"text\" is a number, not a text")));
}

TEST(RowTest, ContentsMayBeTextParts) {
  EXPECT_THAT(Messages(R"({"messages": [{"role": "user", "content": )"
                       R"([{"type": "text", "text": "a"}, )"
                       R"({"text": " b", "type": "text", "cache": 1}]}, )"
                       R"({"role": "assistant", "content": []}]})"),
              ElementsAre("user:a b", "assistant:"));
  EXPECT_THAT(
      Messages(R"({"prompt": [{"role": "user", "content": )"
               R"([{"type": "text", "text": "a"}]}], )"
               R"("completion": [{"role": "assistant", "content": "b"}]})"),
      ElementsAre("user:a", "assistant:b"));
}

// What a template sees of a row: messages, tools, documents, variables.
std::vector<std::string> Seen(const std::string& json, Kind kind = AUTO) {
  RowParser parser;
  Row row;
  const absl::Status status = parser.Parse(json, json.size(), kind, &row);
  EXPECT_TRUE(status.ok()) << status;
  std::string own;
  const ChatInput input = row.Input(row.messages().size(), &own);
  return {std::string(input.messages_json), std::string(input.tools),
          std::string(input.documents), std::string(input.own_variables)};
}

// Plain messages are seen as they are; others whole, with every digit.
TEST(RowTest, TemplatesSeeWholeMessages) {
  EXPECT_THAT(Seen(R"({"messages": [{"role": "user", "content": "a", )"
                   R"("name": null}]})"),
              ElementsAre("", "", "", ""));
  EXPECT_THAT(
      Seen(R"({"id": 1e400, "messages": [{"role": "user", "content": "\"a"}, )"
           R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", )"
           R"("arguments": {"n": 100000000000000000000, "s": "]}"}}}]}], )"
           R"("tools" : [ {"name": "f", "max": 18446744073709551616} ], )"
           R"("documents": [{"title": "t", "text": " u"}], )"
           R"("chat_template_kwargs": {"enable_thinking": false}})"),
      ElementsAre(R"([{"role":"user","content":"\"a"},{"role": "assistant", )"
                  R"("tool_calls": [{"function": {"name": "f", "arguments": )"
                  R"({"n": 100000000000000000000, "s": "]}"}}}]}])",
                  R"([{"name":"f","max":18446744073709551616}])",
                  R"([{"title":"t","text":" u"}])",
                  R"({"enable_thinking":false})"));
  for (const char* none : {"null", "\"\"", "[]", "{}", "\" [] \""}) {
    EXPECT_THAT(Seen(std::string(R"({"messages": [{"role": "user", )"
                                 R"("content": "a"}], "tools": )") +
                     none + "}"),
                ElementsAre("", "", "", ""))
        << none;
  }
  // The text of the list, ShareGPT's calls, and both of a pair's answers.
  EXPECT_THAT(Seen(R"({"conversations": [{"from": "human", "value": "h"}, )"
                   R"({"from": "function_call", "value": "{}"}, )"
                   R"({"from": "observation", "value": "o"}], )"
                   R"("tools": " [{\"name\": \"f\"}]"})"),
              ElementsAre(R"([{"role":"user","content":"h"},)"
                          R"({"role":"function_call","content":"{}"},)"
                          R"({"role":"tool","content":"o"}])",
                          R"([{"name": "f"}])", "", ""));
  EXPECT_THAT(
      Seen(R"({"prompt": [{"role": "user", "content": "p"}], "chosen": )"
           R"([{"role": "assistant", "reasoning_content": "r"}], )"
           R"("rejected": [{"role": "assistant", "content": "n"}]})",
           PREFERENCE)[0],
      R"([{"role":"user","content":"p"},)"
      R"({"role": "assistant", "reasoning_content": "r"}])");
}

// Answers whose calls alone differ begin alike up to these.
TEST(RowTest, PairsAreComparedWithTheirCalls) {
  const auto answer = [](const std::string& name) {
    return R"([{"role": "user", "content": "u"}, {"role": "assistant", )"
           R"("content": "", "tool_calls": [{"name": ")" +
           name + "\"}]}]";
  };
  RowParser parser;
  Row row;
  const std::string json =
      "{\"chosen\": " + answer("f") + ", \"rejected\": " + answer("g") + "}";
  ASSERT_TRUE(parser.Parse(json, json.size(), PREFERENCE, &row).ok());
  EXPECT_EQ(row.prompt_messages, 1u);
}

// Each with its error; nothing crashes.
TEST(RowTest, WrongRowsSayWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "broken JSON"},
      {"", "broken JSON"},
      {R"({"text": "a"} x)", "broken JSON"},
      {R"({"text": "a", "n": tru})", "broken JSON"},
      {"{\"text\": \"\xff\"}", "is not UTF-8"},
      {"{\"text\": \"\xed\xa0\x80\"}", "is not UTF-8"},
      {"[1]", "is a list, not an object"},
      {"3", "is a number, not an object"},
      {"{}", "without keys"},
      {R"({"txt": "a"})", "has the keys \"txt\"; a row has messages"},
      {R"({"text": ""})", "\"text\" is empty"},
      {R"({"text": 3})", "\"text\" is a number, not a text"},
      {R"({"messages": []})", "\"messages\" is empty"},
      {R"({"messages": {}})", "\"messages\" is an object, not a list"},
      {R"({"messages": ["a"]})",
       "message 1 of \"messages\" is a text, not an object"},
      {R"({"messages": [{"role": "user"}]})",
       "message 1 of \"messages\" has no \"content\""},
      {R"({"messages": [{"role": "user", "content": null}]})",
       "\"content\" is null, not a text"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text", )"
       R"("text": "a"}, {"type": "image_url", "image_url": {}}]}]})",
       "message 1 of \"messages\" has \"content\" whose part 2 has the type "
       "\"image_url\": only \"text\""},
      {R"({"messages": [{"role": "user", "content": ["a"]}]})",
       "\"content\" whose part 1 is a text, not an object"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
       "\"content\" whose part 1 has no \"text\""},
      {R"({"messages": [{"role": "assistant", "content": null, )"
       R"("tool_calls": []}]})",
       "\"content\" is null, not a text"},
      {R"({"messages": [{"role": "assistant", "tool_calls": 3}]})",
       "\"tool_calls\" is a number, not a list"},
      {R"({"tools": 1, "messages": [{"role": "user", "content": "a"}]})",
       "\"tools\" is a number, not a list"},
      {R"({"documents": 1, "messages": [{"role": "user", "content": "a"}]})",
       "\"documents\" is a number, not a list"},
      {R"({"chat_template_kwargs": [], "messages": [{"role": "user", )"
       R"("content": "a"}]})",
       "\"chat_template_kwargs\" is a list, not an object"},
      {R"({"messages": [{"role": 1, "content": ""}]})",
       "\"role\" is a number, not a text"},
      {R"({"conversations": [{"from": "bot", "value": "a"}]})",
       "is from \"bot\"; known are human"},
      {R"({"question": "a", "answer": ["b"]})", "\"answer\" is a list"},
      {R"({"instruction": "a", "output": "b", "history": [["c"]]})",
       "\"history\" is not a list of"},
      {std::string(2000, '['), "broken JSON"},
  };
  for (const auto& [json, words] : cases) {
    EXPECT_THAT(Messages(json), ElementsAre(HasSubstr(words))) << json;
  }
}

// The parser may read past a row's end, and a row's strings are reused.
TEST(RowTest, RowsFollowEachOtherInOneText) {
  const std::string text =
      R"({"messages":[{"role":"user","content":"long enough"},)"
      R"({"role":"assistant","content":"b"}]}{"question":"q","answer":"a"})";
  const size_t first = text.find("}{") + 1;
  RowParser parser;
  Row row;
  ASSERT_TRUE(parser
                  .Parse(absl::string_view(text).substr(0, first), text.size(),
                         AUTO, &row)
                  .ok());
  EXPECT_EQ(row.messages()[0].content, "long enough");
  ASSERT_TRUE(parser
                  .Parse(absl::string_view(text).substr(first),
                         text.size() - first, AUTO, &row)
                  .ok());
  ASSERT_EQ(row.messages().size(), 2);
  EXPECT_EQ(row.messages()[0].content, "q");
}

}  // namespace
}  // namespace capstan::chat
