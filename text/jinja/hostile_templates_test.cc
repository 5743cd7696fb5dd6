// SPDX-License-Identifier: Apache-2.0
//
// Templates are code from strangers: each of these ends with an error, soon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/jinja/template.h"

namespace capstan::jinja {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Well beyond what the limits allow on a busy machine.
constexpr auto kLongest = std::chrono::seconds(30);

// The error, of parsing or rendering, or "" if there is none.
std::string ErrorOf(const std::string& source, const Json& variables = {}) {
  const auto begin = std::chrono::steady_clock::now();
  std::string error;
  const auto parsed = Template::Parse(source);
  if (!parsed.ok()) {
    error = std::string(parsed.status().message());
  } else {
    const auto text =
        (*parsed)->Render(variables.is_null() ? Json::object() : variables, 0);
    error = std::string(text.status().message());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLongest)
      << source.substr(0, 200);
  return error;
}

std::string Repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(HostileTemplatesTest, EndlessLoops) {
  const auto steps = HasSubstr("steps");
  EXPECT_THAT(ErrorOf(Repeated("{% for a in range(99999) %}", 4) +
                      Repeated("{% endfor %}", 4)),
              steps);
  EXPECT_THAT(ErrorOf("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}"),
              HasSubstr("nest too deeply"));
  EXPECT_THAT(ErrorOf("{% macro a() %}{{ a() ~ a() }}{% endmacro %}{{ a() }}"),
              HasSubstr("nest too deeply"));
  EXPECT_THAT(ErrorOf("{% macro a(n) %}{% if n %}{{ a(n - 1) ~ a(n - 1) }}"
                      "{% endif %}{% endmacro %}{{ a(60) }}"),
              steps);
}

TEST(HostileTemplatesTest, DeepNesting) {
  const auto deep = HasSubstr("nest");
  for (const char* open :
       {"(", "[", "{'a': ", "-", "not ", "a[", "a(", "a if ", "a|b(", "+"}) {
    EXPECT_FALSE(ErrorOf("{{ " + Repeated(open, 100000)).empty()) << open;
  }
  EXPECT_THAT(ErrorOf("{{ " + Repeated("(", 5000) + Repeated(")", 5000) + "}}"),
              deep);
  EXPECT_THAT(
      ErrorOf(Repeated("{% if a %}", 5000) + Repeated("{% endif %}", 5000)),
      deep);
  EXPECT_THAT(ErrorOf("{% set ns = namespace(a=[]) %}{% for i in range(9999) %}"
                      "{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}"),
              deep);
  EXPECT_THAT(ErrorOf("{% set ns = namespace(a={}) %}{% for i in range(9999) %}"
                      "{% set ns.a = {'a': ns.a} %}{% endfor %}"),
              deep);
  // Many operands in a row: a tree that leans to the left.
  for (const char* more :
       {"+a", " or a", "~a", "|list", ".a", "[0]", "()", " if a", " is b"}) {
    EXPECT_FALSE(
        ErrorOf("{{ a" + Repeated(more, 100000) + " }}{{ 1 + }}").empty())
        << more;
    ErrorOf("{{ a" + Repeated(more, 100000) + " }}");
  }
  Json deep_value = 1;
  for (int i = 0; i < 5000; ++i) deep_value = Json::array({deep_value});
  EXPECT_THAT(ErrorOf("{{ a }}", Json{{"a", deep_value}}), deep);
}

// A chain nests as deeply as it is long.
TEST(HostileTemplatesTest, LongChains) {
  for (const char* link : {"+1", "~1", "*1", "**1", ".a", "[0]", "()", "|e",
                           " and 1", " or 1", " if 1"}) {
    std::string chain = "{{ a";
    for (int i = 0; i < 100000; ++i) chain += link;
    EXPECT_THAT(ErrorOf(chain + " }}"),
                AnyOf(HasSubstr("too long"), HasSubstr("too deeply")))
        << link;
  }
  std::string filters = "{% filter e";
  for (int i = 0; i < 300000; ++i) filters += "|e";
  EXPECT_THAT(ErrorOf(filters + " %}{% endfilter %}"), HasSubstr("too long"));
  // What people write fits, again and again.
  std::string sum = "{{ 1";
  for (int i = 0; i < 300; ++i) sum += "+1";
  sum += " }}";
  std::string sums;
  for (int i = 0; i < 20; ++i) sums += sum;
  EXPECT_EQ(ErrorOf(sums), "");
}

TEST(HostileTemplatesTest, LargeValues) {
  const auto large = AnyOf(HasSubstr("MiB"), HasSubstr("steps"),
                           HasSubstr("too large"), HasSubstr("more than"));
  const std::string grow =
      "{% set ns = namespace(a='aaaaaaaaaaaaaaaa') %}"
      "{% for i in range(99) %}";
  for (const char* step :
       {"{% set ns.a = ns.a ~ ns.a %}", "{% set ns.a = ns.a + ns.a %}",
        "{% set ns.a = ns.a * 9 %}", "{% set ns.a = ns.a|replace('a', 'aa') %}",
        "{% set ns.a = ns.a.replace('', 'aa') %}",
        "{% set ns.a = [ns.a, ns.a]|join %}",
        "{% set ns.a = ns.a.join([ns.a, ns.a, ns.a]) %}",
        "{% set ns.a = [ns.a, ns.a]|tojson %}",
        "{% set ns.a = '%s%s'|format(ns.a, ns.a) %}",
        "{% set ns.a = '{0}{0}'.format(ns.a) %}",
        "{% set ns.a = ns.a|list + ns.a|list %}",
        "{% set ns.a %}{{ ns.a }}{{ ns.a }}{% endset %}"}) {
    EXPECT_THAT(ErrorOf(grow + step + "{% endfor %}"), large) << step;
  }
  EXPECT_THAT(ErrorOf("{{ range(10 ** 12) }}"), large);
  EXPECT_THAT(ErrorOf("{{ 'a' * 10 ** 12 }}"), large);
  EXPECT_THAT(ErrorOf("{{ [1] * 10 ** 12 }}"), large);
  // As fast as its text is long.
  EXPECT_EQ(ErrorOf("{% for i in range(300) %}"
                    "{% set x = '{:0100000}'.format(i) %}{% endfor %}"),
            "");
  EXPECT_THAT(ErrorOf("{{ '%999999999999d'|format(1) }}"),
              HasSubstr("width or precision is too large"));
  EXPECT_THAT(ErrorOf("{{ 'a\n'|indent(10 ** 9) }}"), HasSubstr("exceeds"));
  EXPECT_THAT(ErrorOf("{{ [1]|tojson(indent=10 ** 9) }}"),
              HasSubstr("exceeds"));
  EXPECT_THAT(ErrorOf("{{ 10 ** 99 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(ErrorOf("{{ 99999999999999999999 + 1 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(ErrorOf("{{ 0x" + Repeated("f", 5000) + " }}"),
              HasSubstr("too many digits"));
}

// What refers to itself would never be freed.
TEST(HostileTemplatesTest, ValuesDontHoldThemselves) {
  EXPECT_THAT(ErrorOf("{% set ns = namespace() %}{% set ns.a = ns %}"),
              HasSubstr("`a` can't be a function or namespace"));
  EXPECT_THAT(ErrorOf("{% set ns = namespace() %}{% set ns.a = [ns] %}"),
              HasSubstr("`a` can't be a function or namespace"));
  EXPECT_EQ(ErrorOf("{% macro a() %}{% set b = a %}{{ b.name }}{% endmacro %}"
                    "{% set c = a %}{{ c() }}"),
            "");
}

TEST(HostileTemplatesTest, BytesThatAreNoText) {
  EXPECT_THAT(ErrorOf("\xff{{ a }}"), HasSubstr("isn't UTF-8"));
  EXPECT_THAT(ErrorOf("{{ '\xc3' }}"), HasSubstr("isn't UTF-8"));
  // In a variable each is read as U+FFFD.
  for (const char* text : {"\xff", "\xc3", "a\xe2\x82", "\xf0\x9f\x98"}) {
    const Json variables{{"a", text}};
    for (const char* use :
         {"{{ a }}", "{{ a|upper }}", "{{ a[0] }}", "{{ a|list }}",
          "{{ a|trim }}", "{{ a|length }}", "{{ a[::-1] }}", "{{ [a] }}",
          "{{ a|title }}", "{{ a|reverse }}", "{{ a|tojson }}",
          "{{ a|tojson(ensure_ascii=true) }}", "{{ a.split() }}",
          "{{ a.find('b') }}", "{{ '%5s' % a }}"}) {
      EXPECT_EQ(ErrorOf(use, variables), "") << use;
    }
  }
}

TEST(HostileTemplatesTest, OddNumbers) {
  const std::string least = "(-9223372036854775807 - 1)";
  for (const std::string& use :
       std::vector<std::string>{least + " // -1",
                                least + " % -1",
                                "-" + least,
                                least + "|abs",
                                least + " * -1",
                                "'a'[" + least + ":]",
                                "'a'[::" + least + "]",
                                "[1][" + least + "]",
                                "range(" + least + ", 0)",
                                least + "|string",
                                least + " is divisibleby(-1)",
                                "1e999|int",
                                "(1e999 - 1e999)|int",
                                "1e308 * 10",
                                "1 / 0",
                                "1 % 0",
                                "1.5 // 0",
                                "0 ** -1",
                                "1.5|round(9999)",
                                "'a' * " + least}) {
    ErrorOf("{{ " + use + " }}");
  }
  EXPECT_THAT(ErrorOf("{{ 1 // 0 }}"), HasSubstr("line 1: a division by zero"));
}

}  // namespace
}  // namespace capstan::jinja
