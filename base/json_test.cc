// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/json_document.h"
#include "base/json_parts.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

std::string Fitting(const std::string& json) {
  return WithNumbersThatFit(json).value_or("as it is");
}

// Parses `json` with simdjson and reads "x".
simdjson::error_code Document(const std::string& json, double* x) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  const simdjson::error_code error =
      ParseJsonDocument(json, json.size(), &parser, &root);
  return error != simdjson::SUCCESS ? error : root["x"].get(*x);
}

TEST(JsonTest, WhatFitsStays) {
  for (const char* json :
       {"", "{}", "[1, -2, 3.5e10, 1e-400, -0]", "9223372036854775807",
        "-9223372036854775808", "18446744073709551615",
        R"({"a": "18446744073709551616 \" 1e999", "1e999": "\\"})",
        R"("18446744073709551616)", "tru", "1-2", "--5", "1e", "1.2.3"}) {
    EXPECT_EQ(Fitting(json), "as it is") << json;
  }
}

TEST(JsonTest, WhatIsTooLargeIsSpelledSoThatItFits) {
  EXPECT_EQ(Fitting("[18446744073709551616,1]"), "[18446744073709551616e0,1]");
  EXPECT_EQ(Fitting("-9223372036854775809"), "-9223372036854775809e0");
  EXPECT_EQ(Fitting(R"({"a\"":1e400,"b":-1.5E+999})"),
            R"({"a\"":1.7976931348623157e308,"b":-1.7976931348623157e308})");
  EXPECT_EQ(Fitting("[" + std::string(5000, '9') + "]"),
            "[1.7976931348623157e308]");
}

// As PreTrainedTokenizerFast.save_pretrained writes "no limit", and worse.
TEST(JsonTest, BothParsersTakeNumbersOfAnySize) {
  for (const auto& [number, value] :
       {std::pair<std::string, double>{"1000000000000000019884624838656", 1e30},
        {"18446744073709551616", 18446744073709551616.0},
        {"-9223372036854775809", -9223372036854775809.0},
        {std::string(400, '9'), 1.7976931348623157e308},
        {"-1e400", -1.7976931348623157e308},
        {"3", 3.0}}) {
    const std::string json =
        "{\"text\": \"99999999999999999999\", \"x\": " + number +
        ", \"y\": [1]}";
    const Json parsed = ParseJson<Json>(json);
    ASSERT_TRUE(parsed.is_object()) << json;
    EXPECT_EQ(parsed["x"].get<double>(), value);
    EXPECT_EQ(parsed["text"], "99999999999999999999");
    double x = 0.0;
    ASSERT_EQ(Document(json, &x), simdjson::SUCCESS) << json;
    EXPECT_EQ(x, value);
  }
}

TEST(JsonTest, BrokenJsonStaysBroken) {
  for (const char* json :
       {"", "{\"x\": 99999999999999999999", "{\"x\": 099999999999999999999}",
        "{\"x\": -}", "{\"x\": 99999999999999999999x}",
        "{\"x\": +99999999999999999999}", "{\"x\": 1e400 1e400}"}) {
    EXPECT_TRUE(ParseJson<Json>(json).is_discarded()) << json;
    double x = 0.0;
    EXPECT_NE(Document(json, &x), simdjson::SUCCESS) << json;
  }
}

TEST(JsonTest, IntegersAreThoseOfInt64) {
  const auto integer = [](const char* text) {
    return JsonInteger(ParseJson<Json>(text));
  };
  EXPECT_EQ(integer("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(integer("-9223372036854775808"), INT64_MIN);
  for (const char* text :
       {"9223372036854775808", "18446744073709551615", "18446744073709551616",
        "-9223372036854775809", "1.0", "1e3", "\"1\"", "null", "true"}) {
    EXPECT_EQ(integer(text), absl::nullopt) << text;
  }
}

TEST(JsonTest, TooDeepIsNoJson) {
  const auto nested = [](int depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_FALSE(ParseJson<nlohmann::json>(nested(512)).is_discarded());
  EXPECT_TRUE(ParseJson<nlohmann::json>(nested(513)).is_discarded());
  EXPECT_TRUE(ParseJson<nlohmann::json>(nested(200000)).is_discarded());
  EXPECT_EQ(JsonDepth(R"({"a": "[[[\"[[", "b": [1]})"), 2);
}

// The error of `read` on an object with these keys.
std::string KeysError(const std::string& text,
                      const std::function<void(JsonKeys&)>& read) {
  const absl::StatusOr<Json> json = ParseObject("a.json", text);
  if (!json.ok()) return std::string(json.status().message());
  JsonKeys keys("a.json", *json);
  read(keys);
  return std::string(keys.status().message());
}

// Each key of an ordered object is compared with all before it.
TEST(JsonTest, TooManyOrderedKeysAreNoJson) {
  std::string text = "{\"a\": [1]";
  for (int i = 0; i < 1000000; ++i) text += absl::StrCat(",\"", i, "\":0");
  text += "}";
  EXPECT_TRUE(ParseJson<nlohmann::ordered_json>(text).is_discarded());
  EXPECT_TRUE(ParseJson<nlohmann::json>(text).is_object());
  // In all, but not in one.
  text = "[";
  for (int i = 0; i < 100000; ++i) text += "{\"a\":{\"::\":1}},";
  text += "{}]";
  EXPECT_TRUE(ParseJson<nlohmann::ordered_json>(text).is_array());
}

TEST(JsonKeysTest, ReadsWhatIsThereAndWhatIsNot) {
  const Json json = *ParseObject(
      "a.json", R"({"i": 7, "d": 1e3, "b": true, "n": null, "s": "x"})");
  JsonKeys keys("a.json", json);
  EXPECT_EQ(keys.Int("i", absl::nullopt), 7);
  EXPECT_EQ(keys.Int("n", 3), 3);
  EXPECT_EQ(keys.Double("d", 0), 1000);
  EXPECT_EQ(keys.Double("i", 0), 7);
  EXPECT_EQ(keys.Double("none", 0.5), 0.5);
  EXPECT_TRUE(keys.Bool("b", false));
  EXPECT_TRUE(keys.Bool("n", true));
  keys.Only("s", "x", "y");
  keys.Only("none", "x", "y");
  keys.Must("b", true);
  EXPECT_EQ(keys.Find("n"), nullptr);
  EXPECT_TRUE(keys.status().ok()) << keys.status();
}

TEST(JsonKeysTest, ErrorsNameFileKeyWishAndValue) {
  const auto of = [](const char* text, const char* key) {
    return std::array<std::string, 3>{
        KeysError(text, [=](JsonKeys& k) { k.Int(key, absl::nullopt); }),
        KeysError(text, [=](JsonKeys& k) { k.Double(key, 0); }),
        KeysError(text, [=](JsonKeys& k) { k.Bool(key, false); })};
  };
  EXPECT_THAT(
      of(R"({"k": "x"})", "k"),
      testing::ElementsAre("a.json: k must be an integer, is \"x\"",
                           "a.json: k must be a number, is \"x\"",
                           "a.json: k must be true or false, is \"x\""));
  EXPECT_EQ(of("{}", "k")[0], "a.json: k is missing");
  EXPECT_EQ(of(R"({"k": 9223372036854775808})", "k")[0],
            "a.json: k must be an integer below 2^63, is 9223372036854775808");
  EXPECT_EQ(of("[1]", "k")[0], "a.json: not a JSON object");
  EXPECT_EQ(KeysError(R"({"k": 2})", [](JsonKeys& k) { k.Only("k", 1, 3); }),
            "a.json: k 2 is not implemented, only 1");
  EXPECT_EQ(KeysError("{}", [](JsonKeys& k) { k.Must("k", "v"); }),
            "a.json: k is missing, must be \"v\"");
}

TEST(JsonKeysTest, TheFirstErrorStays) {
  EXPECT_EQ(KeysError(R"({"a": 1, "b": 2})",
                      [](JsonKeys& keys) {
                        keys.Bool("b", false);
                        keys.Bool("a", false);
                        keys.Fail("c", "is wrong");
                      }),
            "a.json: b must be true or false, is 2");
}

TEST(JsonPartsTest, PartsAreAsTheyAreWritten) {
  const std::string json =
      R"( {"a\"b" : 1, "a": {"b": [1, "]}"], "c": {}} , "n":-1e400,)"
      R"("l": [ 1 ,"x", [], {"y": "\\"} ], "a": 2, "t": true } )";
  EXPECT_EQ(JsonMember(json, "a"), R"({"b": [1, "]}"], "c": {}})");
  EXPECT_EQ(JsonMember(json, "n"), "-1e400");
  EXPECT_EQ(JsonMember(json, "t"), "true");
  EXPECT_EQ(JsonMember(json, "b"), "");
  EXPECT_THAT(JsonItems(JsonMember(json, "l")),
              ::testing::ElementsAre("1", "\"x\"", "[]", R"({"y": "\\"})"));
  EXPECT_THAT(JsonItems("[]"), ::testing::IsEmpty());
  // What isn't JSON ends, somewhere.
  for (size_t size = 0; size < json.size(); ++size) {
    JsonMember(json.substr(0, size), "z");
    JsonItems(json.substr(0, size));
  }
}

}  // namespace
}  // namespace capstan
