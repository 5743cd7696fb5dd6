// SPDX-License-Identifier: Apache-2.0
//
// testdata/known_rows.jsonl: rows of our own, and what the functions of lm_eval
// 0.4.13 make of them in Python. So do the expected values below.
#include "inference/evaluate/known_functions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "inference/evaluate/documents.h"
#include "inference/evaluate/function_forms.h"

namespace capstan::evaluate {
namespace {

using Json = nlohmann::ordered_json;

template <typename Form>
const Form* Named(absl::Span<const Form> forms, const std::string& name) {
  const auto found =
      std::find_if(forms.begin(), forms.end(),
                   [&](const Form& form) { return form.name == name; });
  return found == forms.end() ? nullptr : &*found;
}

TEST(KnownFunctionsTest, RowsBecomeWhatTheyDoInPython) {
  const auto cases =
      ReadDocuments("inference/evaluate/testdata/known_rows.jsonl");
  ASSERT_TRUE(cases.ok()) << cases.status();
  std::set<std::string> seen;
  for (const Document& one : *cases) {
    const std::string name = one.row["form"];
    SCOPED_TRACE(one.place + " " + name);
    seen.insert(name);
    const RowForm* const form = Named(RowForms(), name);
    ASSERT_NE(form, nullptr);
    const auto function =
        NewRowFunction(*form, one.row.value("constants", Json::object()),
                       one.row.value("function", ""));
    ASSERT_TRUE(function.ok()) << function.status();
    if (!absl::StrContains(name, "process_docs")) {
      const auto value = (*function)(one.row["row"]);
      ASSERT_TRUE(value.ok()) << value.status();
      EXPECT_EQ(*value, one.row["value"]);
      continue;
    }
    const auto rows = Processed({{one.row["row"], ""}}, *function);
    ASSERT_TRUE(rows.ok()) << rows.status();
    ASSERT_EQ(rows->size(), one.row["value"].is_null() ? 0u : 1u);
    // Without an order.
    if (!rows->empty()) {
      EXPECT_EQ(nlohmann::json(rows->front().row),
                nlohmann::json(one.row["value"]));
    }
  }
  EXPECT_EQ(seen.size(), RowForms().size());
}

TEST(KnownFunctionsTest, RowsThatAreOtherwiseAreErrors) {
  for (const RowForm& form : RowForms()) {
    if (form.kind != RowForm::kCode) continue;
    const auto function = NewRowFunction(form, Json::object(), "");
    ASSERT_TRUE(function.ok());
    for (const char* row :
         {"{}", R"({"problems": "[1]", "answers": [], "text": 1, "page": null,
                    "ctx_a": [], "instruction": 3, "options": {}})"}) {
      EXPECT_FALSE((*function)(Json::parse(row)).ok()) << form.name;
    }
  }
}

TEST(KnownFunctionsTest, FormsWithoutConstantsAreForThoseOfTheirDigest) {
  PythonFunction function;
  function.digest = 1;
  function.whole_digest = 2;
  function.inner_digest = 3;
  for (const char* source : {"", "{{a}}"}) {
    EXPECT_FALSE(IsFormOf(1, source, function));
    EXPECT_TRUE(IsFormOf(2, source, function));
    EXPECT_FALSE(IsFormOf(3, source, function));
  }
  EXPECT_TRUE(IsFormOf(1, "{{constants.A}}", function));
  EXPECT_FALSE(IsFormOf(2, "{{constants.A}}", function));
  EXPECT_TRUE(IsFormOf(3, "{{constants.A}}", function));
}

RowAnswer Likelihoods(const std::vector<bool>& greedy) {
  RowAnswer answer;
  for (const double value : {-3.0, -1.5, -2.0, -4.0}) {
    if (answer.greedy.size() == greedy.size()) break;
    answer.greedy.push_back(greedy[answer.greedy.size()]);
    answer.log_likelihoods.push_back(value);
  }
  return answer;
}

RowAnswer Text(const char* text) {
  RowAnswer answer;
  answer.text = text;
  return answer;
}

void ExpectResult(const char* name, const char* row, const RowAnswer& answer,
                  const char* wanted) {
  SCOPED_TRACE(name);
  const ResultForm* const form = Named(ResultForms(), name);
  ASSERT_NE(form, nullptr);
  const auto result = form->function(Json::parse(row), answer);
  ASSERT_TRUE(result.ok()) << result.status();
  const Json values = Json::parse(wanted);
  ASSERT_EQ(result->size(), values.size());
  for (const auto& [key, value] : values.items()) {
    ASSERT_TRUE(result->contains(key)) << key;
    if (value.is_array()) {
      EXPECT_EQ((*result)[key], value) << key;
    } else {
      const Json& got = (*result)[key];
      const double number =
          got.is_boolean() ? (got.get<bool>() ? 1.0 : 0.0) : got.get<double>();
      EXPECT_NEAR(number, value.get<double>(), 1e-15) << key;
    }
  }
}

TEST(KnownFunctionsTest, ResultsOfLikelihoods) {
  const RowAnswer four = Likelihoods({false, true, false, true});
  ExpectResult("crows_pairs", "{}", Likelihoods({false, true}),
               R"({"likelihood_diff": 1.5, "pct_stereotype": 0})");
  ExpectResult("simple_cooccurrence_bias", "{}", four,
               R"({"likelihood_diff": 0.5744852669397797,
                   "pct_male_preferred": 0})");
  ExpectResult("truthfulqa mc2", R"({"mc2_targets": {"labels": [1, 0, 1, 0]}})",
               four, R"({"acc": 0.43398071638967184})");
  ExpectResult("mutual", R"({"answers": "A"})", four,
               R"({"r@1": 0, "r@2": 0, "mrr": 0.3333333333333333})");
  ExpectResult("mutual", R"({"answers": "C"})", four,
               R"({"r@1": 0, "r@2": 1, "mrr": 0.5})");
  ExpectResult("mutual", R"({"answers": "B"})",
               Likelihoods({false, false, false, false}),
               R"({"r@1": 1, "r@2": 1, "mrr": 1})");
  RowAnswer whole;
  whole.log_likelihoods = {-7.5};
  ExpectResult("wikitext", R"({"page": " a b\n cé "})", whole,
               R"({"word_perplexity": [-7.5, 5.0],
                   "byte_perplexity": [-7.5, 10.0],
                   "bits_per_byte": [-7.5, 10.0]})");
}

TEST(KnownFunctionsTest, ResultsOfTexts) {
  ExpectResult("longbench qa", R"({"answers": ["the red Fox!", "x"]})",
               Text(" A red dog, a fox "),
               R"({"score": 0.8, "qa_f1_score": 0.8})");
  ExpectResult("longbench qa", R"({"answers": ["x"]})", Text("y"),
               R"({"score": 0, "qa_f1_score": 0})");
  for (const char* name : {"mlqa ar", "tydiqa ar"}) {
    ExpectResult(name, R"({"answers": ["البيت الكبير", "x"]})",
                 Text("بيت، كبير جدا"), R"({"exact_match": 0, "f1": 0.8})");
    ExpectResult(name, R"({"answers": ["البيت + a"]})", Text("بيت a"),
                 R"({"exact_match": 1, "f1": 1})");
  }
}

TEST(KnownFunctionsTest, MissingColumnsAreErrors) {
  for (const char* name : {"mutual", "truthfulqa mc2", "wikitext", "mlqa ar"}) {
    RowAnswer answer = Text("a");
    answer.log_likelihoods = {-1.0};
    EXPECT_FALSE(
        Named(ResultForms(), name)->function(Json::object(), answer).ok())
        << name;
  }
}

}  // namespace
}  // namespace capstan::evaluate
