// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/python_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "inference/evaluate/python_literal.h"

namespace capstan::evaluate {
namespace {

using Json = nlohmann::ordered_json;

PythonFunction Find(const std::string& source, const std::string& name) {
  const char* const tmp = std::getenv("TEST_TMPDIR");
  const std::string path =
      std::string(tmp != nullptr ? tmp : "/tmp") + "/utils.py";
  std::ofstream(path) << source;
  const auto found = FindPythonFunction(path, name);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.ok() ? *found : PythonFunction();
}

constexpr char kSource[] = R"py(import re
from functools import partial

LETTERS = ["A", "B"]  # a constant

def clean(text):
    """A text
without spaces."""
    return re.sub(r"\s", "", text)

def other(doc):
    return 1


def base(doc, word):
    # what it does
    return clean(doc["a"]) + word + LETTERS[0]

of_x = partial(base, word="x (")
of_y = base("y", NAMES["z"])

NAMES = {"z": "Z"}

def of_z(doc):
    """Only calls."""
    return base(doc, "z")
)py";

std::string Replaced(const std::string& what, const std::string& with) {
  std::string source = kSource;
  source.replace(source.find(what), what.size(), with);
  return source;
}

TEST(PythonSourceTest, DigestsAreOfWhatAFunctionReaches) {
  const PythonFunction base = Find(kSource, "base");
  EXPECT_EQ(base.name, "base");
  EXPECT_EQ(base.constants, (Json{{"LETTERS", {"A", "B"}}}));
  // Neither comments nor others nor constants matter.
  for (const char* what : {"# what it does", "return 1"}) {
    EXPECT_EQ(Find(Replaced(what, "# 2"), "base").digest, base.digest) << what;
  }
  EXPECT_EQ(Find(Replaced("\"B\"", "\"C\""), "base").digest, base.digest);
  for (const char* what : {"doc[\"a\"]", "\\s", "import re\n", "spaces."}) {
    EXPECT_NE(Find(Replaced(what, "x"), "base").digest, base.digest) << what;
  }
  EXPECT_NE(Find(kSource, "other").digest, base.digest);
}

TEST(PythonSourceTest, WholeDigestsAreOfConstantsToo) {
  const PythonFunction base = Find(kSource, "base");
  EXPECT_NE(base.whole_digest, base.digest);
  EXPECT_EQ(Find(Replaced("# a constant", ""), "base").whole_digest,
            base.whole_digest);
  EXPECT_NE(Find(Replaced("\"B\"", "\"C\""), "base").whole_digest,
            base.whole_digest);
  const uint64_t of_x = Find(kSource, "of_x").whole_digest;
  EXPECT_NE(of_x, base.whole_digest);
  EXPECT_NE(Find(Replaced("x (", "y ("), "of_x").whole_digest, of_x);
  // What stands in the code is in its digest.
  const PythonFunction local = Find("def f(doc):\n    a = 1\n", "f");
  EXPECT_EQ(local.constants, (Json{{"a", 1}}));
  EXPECT_EQ(local.whole_digest, local.digest);
}

TEST(PythonSourceTest, PartialFunctionsBringArguments) {
  const PythonFunction of_x = Find(kSource, "of_x");
  EXPECT_EQ(of_x.name, "base");
  EXPECT_EQ(of_x.digest, Find(kSource, "base").digest);
  EXPECT_EQ(of_x.constants["word"], "x (");
  EXPECT_TRUE(absl::IsNotFound(FindPythonFunction("/dev/null", "f").status()));
}

TEST(PythonSourceTest, CallsOfOtherFunctionsHaveTheirDigestToo) {
  const uint64_t base = Find(kSource, "base").digest;
  const PythonFunction of_z = Find(kSource, "of_z");
  EXPECT_EQ(of_z.inner_digest, base);
  EXPECT_NE(of_z.digest, base);
  EXPECT_EQ(of_z.constants["arguments"], Json::array({"z"}));
  const PythonFunction of_y = Find(kSource, "of_y");
  EXPECT_EQ(of_y.inner_digest, base);
  EXPECT_EQ(of_y.constants["arguments"], Json::array({"y", "Z"}));
  EXPECT_EQ(Find(kSource, "clean").inner_digest, 0u);
}

TEST(PythonLiteralTest, ReadsValuesOnly) {
  EXPECT_EQ(*PythonLiteral(R"(['a\n', "it's", r'\d', u'é\x41' '\u00e9'])"),
            Json::array({"a\n", "it's", "\\d", "éAé"}));
  EXPECT_EQ(*PythonLiteral("(1, -2.5, True, None)"),
            Json::array({1, -2.5, true, nullptr}));
  EXPECT_EQ(*PythonLiteral("{'a': [], 'b': {1: 2},}"),
            Json::parse(R"({"a": [], "b": {"1": 2}})"));
  EXPECT_EQ(*PythonLiteral("('a'\n 'b')"), Json("ab"));
  EXPECT_EQ(*PythonLiteral("'''a\n'b'''"), Json("a\n'b"));
  for (const char* other :
       {"['it's']", "f'a'", "x", "[1", "1 + 1", "'a", "open('f')", "nan", ""}) {
    EXPECT_FALSE(PythonLiteral(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace capstan::evaluate
