// SPDX-License-Identifier: Apache-2.0
//
// The expected texts are what jinja2 3.1 makes in transformers' settings.
#include "text/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace capstan::jinja {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Json = nlohmann::ordered_json;

constexpr std::time_t kNow = 1700000000;  // 2023-11-14 22:13:20 UTC

const Json& Variables() {
  static const auto* const variables = new Json(Json::parse(R"({
    "a": "Hello, World", "n": 3, "f": 2.5, "l": [3, 1, 2],
    "w": ["b", "A", "c"], "d": {"k": 1, "j": "x<y", "z": null},
    "u": "Straße Ä",
    "ms": [{"role": "user", "content": "hi", "n": 1},
           {"role": "assistant", "content": "yo", "n": 2}]})"));
  return *variables;
}

absl::StatusOr<Rendered> Render(const std::string& source) {
  setenv("TZ", "UTC", 1);
  auto parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(Variables(), kNow);
}

std::string ErrorOf(const std::string& source) {
  return std::string(Render(source).status().message());
}

void ExpectTexts(
    const std::vector<std::pair<std::string, std::string>>& cases) {
  for (const auto& [source, want] : cases) {
    const auto text = Render(source);
    ASSERT_TRUE(text.ok()) << source << "\n" << text.status();
    EXPECT_EQ(text->text, want) << source;
  }
}

TEST(TemplateTest, WhiteSpace) {
  ExpectTexts({
      {"  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"},
      {"a  {%- if true -%}  b  {%- endif -%}  c", "abc"},
      {"  {%+ if true %}x{% endif +%}\n y", "  x\n y"},
      {"{# c #}\na{#- c -#}  b", "ab"},
      {"a {{- 'b' -}} c\n", "abc"},
      {"{{ 'a' }}\nb\n\n", "a\nb\n"},
      {"x\n  {# c #}  \ny", "x\n  \ny"},
      {"{% if true -%}\n\n  a{% endif %}\n\nb\n", "a\nb"},
  });
}

// What jinja2's Environment(keep_trailing_newline=True) writes.
TEST(TemplateTest, WhiteSpaceMayBeKept) {
  const auto kept = Template::Parse(
      "  {% if true %}\n a %} {# c #}\n{{ n }} F#}\n{%- endif %}\n", Limits(),
      WhiteSpace::kKept);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ((*kept)->Render(Variables(), kNow)->text, "  \n a %} \n3 F#}\n");
}

TEST(TemplateTest, Loops) {
  ExpectTexts({
      {"{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ "
       "loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% "
       "endfor %}",
       "1032TrueFalse3;2121FalseFalse3;3210FalseTrue3;"},
      {"{% for i in [] %}x{% else %}none{% endfor %}", "none"},
      {"{% for i in l if i > 1 %}{{ i }}{{ loop.length }}{% endfor %}", "3222"},
      {"{% for i in l %}{{ loop.previtem }}-{{ loop.nextitem }} {% endfor %}",
       "-1 3-2 1- "},
      {"{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}",
       "k=1,j=x<y,z=None,"},
      {"{% for k in d %}{{ k }}{% endfor %}", "kjz"},
      {"{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% "
       "endfor %}",
       "32"},
      {"{% for i in l %}{% if loop.index > 1 %}{% break %}{% endif %}{{ i }}{% "
       "endfor %}",
       "3"},
      {"{% for c in 'äb' %}<{{ c }}>{% endfor %}", "<ä><b>"},
      {"{% for i in range(5, 0, -2) %}{{ i }}{% endfor %}", "531"},
  });
}

TEST(TemplateTest, Scopes) {
  ExpectTexts({
      {"{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x "
       "}}",
       "3121"},
      {"{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "2"},
      {"{% set x = 1 %}{% with x = 2, y = x %}{{ x }}{{ y }}{% set z = 3 %}{% "
       "endwith %}{{ x }}{{ z }}",
       "211"},
      {"{% set ns = namespace(v=0) %}{% for i in l %}{% set ns.v = ns.v + i "
       "%}{% endfor %}{{ ns.v }}",
       "6"},
      {"{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}", "5"},
      {"{% macro m() %}{% set x = 6 %}{{ x }}{% endmacro %}{% set x = 5 %}{{ "
       "m() }}{{ x }}",
       "65"},
      {"{% set a, b = 1, 2 %}{{ a + b }}", "3"},
      {"{% for i in l %}{{ x }}{% set x = i %}{% endfor %}", ""},
  });
}

TEST(TemplateTest, Macros) {
  ExpectTexts({
      {"{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) "
       "}} {{ m(1, c=3) }} {{ m(b=4, a=5) }}",
       "121 123 545"},
      {"{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{% "
       "endcall %}",
       "<in>"},
      {"{% macro m() %}<{{ caller(1) }}>{% endmacro %}{% call(i) m() %}{{ i "
       "}}{% endcall %}",
       "<1>"},
      {"{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% "
       "endmacro %}{{ m(3) }}",
       "3210"},
      {"{% macro m() %} a {% endmacro %}{{ m()|trim ~ m() }}{{ m.name }}",
       "a a m"},
  });
}

TEST(TemplateTest, Blocks) {
  ExpectTexts({
      {"{% set x %}a{{ n }}{% endset %}[{{ x }}]", "[a3]"},
      {"{% set x | upper | trim %} a{{ n }} {% endset %}[{{ x }}]", "[A3]"},
      {"{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"},
      {"{% filter replace('a', 'b') | upper %}aab{% endfilter %}", "BBB"},
      {"{% generation %}a{{ n }}{% endgeneration %}", "a3"},
  });
}

TEST(TemplateTest, Expressions) {
  ExpectTexts({
      {"{{ 1 + 2 * 3 ** 2 // 4 % 5 }}", "5"},
      {"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }} {{ -2 ** 2 }}",
       "-4 2 3.5 0.5 4"},
      {"{{ 1 < 2 < 3 }} {{ 3 > 2 == 2 }} {{ 'a' in 'abc' }} {{ 2 not in l }}",
       "True True True False"},
      {"{{ 'a' ~ 1 ~ none ~ 1.0 }}", "a1None1.0"},
      {"{{ not true or false and 1 }}", "False"},
      {"{{ 'x' if n > 5 }}{{ 'y' if n < 5 else 'z' }}", "y"},
      {"{{ 'a' * 3 }}{{ [1] * 2 + [2] }}", "aaa[1, 1, 2]"},
      {"{{ '%s-%05.1f' % ('a', 2.25) }}", "a-002.2"},
      {"{{ 1e3 }} {{ 1e22 }} {{ 0.1 + 0.2 }} {{ 1_000 }}",
       "1000.0 1e+22 0.30000000000000004 1000"},
      {"{{ true }} {{ none }} {{ True and None }}", "True None None"},
      {"{{ [1, 'a', (1,), {'k': none}] }}", "[1, 'a', (1,), {'k': None}]"},
      {"{{ \"it's\" }} {{ [\"it's\"] }} {{ 'a\\n\\t\\x41\\u00e4' }}",
       "it's [\"it's\"] a\n\tAä"},
      {"{{ ['a\\n\\'', 'ä\\x07'] }}", "[\"a\\n'\", 'ä\\x07']"},
      {"{{ ms[0].role }}{{ ms[-1]['role'] }}{{ ms.0.n }}", "userassistant1"},
      {"{{ d.items()|list }}", "[('k', 1), ('j', 'x<y'), ('z', None)]"},
      {"{{ nope }}[{{ nope is defined }}]{{ d.nope is undefined }}{{ ms[9] is "
       "defined }}",
       "[False]TrueFalse"},
      {"{{ range(3)|list }}{{ dict(a=1) }}", "[0, 1, 2]{'a': 1}"},
      {"{{ (1, 2) + (3,) }}{{ () }}", "(1, 2, 3)()"},
  });
}

TEST(TemplateTest, Slices) {
  ExpectTexts({
      {"{{ a[1:4] }}{{ a[::-1] }}{{ a[-5:] }}{{ a[:-7] }}{{ a[1:8:3] }}",
       "elldlroW ,olleHWorldHelloeoW"},
      {"{{ l[1:] }}{{ l[:1] }}{{ l[::-1] }}{{ l[5:] }}",
       "[1, 2][3][2, 1, 3][]"},
      {"{{ u[4] }}{{ u[-1] }}{{ u[5:1:-1] }}", "ßÄeßar"},
      {"{{ ms[1:]|length }}{{ l[2:0:-1] }}", "1[2, 1]"},
  });
}

TEST(TemplateTest, Filters) {
  ExpectTexts({
      {"{{ a|upper }} {{ a|lower }} {{ u|upper }} {{ 'hello wORLD'|title }} {{ "
       "'hELLO'|capitalize }}",
       "HELLO, WORLD hello, world STRASSE Ä Hello World Hello"},
      {"{{ ' a '|trim }}|{{ 'xxaxx'|trim('x') }}", "a|a"},
      {"{{ l|first }}{{ l|last }}{{ l|length }}{{ l|sum }}{{ l|min }}{{ l|max "
       "}}{{ l|sort }}{{ l|reverse|list }}",
       "323613[1, 2, 3][2, 1, 3]"},
      {"{{ w|sort }}{{ w|sort(case_sensitive=true) }}{{ l|sort(reverse=true) "
       "}}{{ ms|sort(attribute='n', "
       "reverse=true)|map(attribute='role')|join(',') }}",
       "['A', 'b', 'c']['A', 'b', 'c'][3, 2, 1]assistant,user"},
      {"{{ l|join('-') }} {{ ms|join(', ', attribute='role') }}",
       "3-1-2 user, assistant"},
      {"{{ nope|default('d') }}{{ ''|default('d') }}{{ ''|default('d', true) "
       "}}{{ d.nope|d(1) }}",
       "dd1"},
      {"{{ ms|map(attribute='content')|list }}{{ w|map('upper')|join }}{{ "
       "ms|map(attribute='x', default='-')|join }}",
       "['hi', 'yo']BAC--"},
      {"{{ ms|selectattr('role', 'equalto', 'user')|list|length }}{{ "
       "ms|rejectattr('n', 'eq', 1)|map(attribute='n')|list }}{{ "
       "l|select('odd')|list }}{{ l|reject('>', 1)|list }}",
       "1[2][3, 1][1]"},
      {"{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}",
       "a\n    b\n\n    c|  a\n  b"},
      {"{{ 2.5|round }} {{ -2|round }} {{ 3.14159|round(2) }} {{ 2.1|round(0, "
       "'ceil') }} {{ "
       "'12'|int }} {{ 'x'|int(7) }} {{ '1.5'|float }} {{ -3|abs }}",
       "2.0 -2 3.14 3.0 12 7 1.5 3"},
      {"{{ d|dictsort }}{{ d|items|list }}",
       "[('j', 'x<y'), ('k', 1), ('z', None)][('k', 1), ('j', 'x<y'), ('z', "
       "None)]"},
      {"{{ [1, 2, 1, 3]|unique|list }}", "[1, 2, 3]"},
      {"{{ 'aXa'|replace('a', 'b') }}{{ 'aaa'|replace('a', 'b', 2) }}",
       "bXbbba"},
      {"{{ '<a & \\'b\\'>'|e }}{{ '<b>'|escape ~ '<c>' }}",
       "&lt;a &amp; &#39;b&#39;&gt;&lt;b&gt;<c>"},
      {"{{ '%s %d'|format('a', 3) }}", "a 3"},
      {"{{ ms|groupby('role')|map('first')|list }}", "['assistant', 'user']"},
      {"{{ 5|string ~ 5 }} {{ 'abc'|list }} {{ 'abc'|reverse }} {{ d|length }}",
       "55 ['a', 'b', 'c'] cba 3"},
  });
}

TEST(TemplateTest, Json) {
  ExpectTexts({
      {"{{ d|tojson }} {{ [1, 2.0, 'ä\\n\"', true, none]|tojson }}",
       "{\"k\": 1, \"j\": \"x<y\", \"z\": null} [1, 2.0, \"ä\\n\\\"\", true, "
       "null]"},
      {"{{ d|tojson(indent=2) }}",
       "{\n  \"k\": 1,\n  \"j\": \"x<y\",\n  \"z\": null\n}"},
      {"{{ {'b': 1, 'a': [1, {'c': []}]}|tojson(indent=4, sort_keys=true) }}",
       "{\n    \"a\": [\n        1,\n        {\n            \"c\": []\n        "
       "}\n    ],\n    \"b\": 1\n}"},
      {"{{ d|tojson(separators=(',', ':')) }}",
       "{\"k\":1,\"j\":\"x<y\",\"z\":null}"},
      {"{{ u|tojson(ensure_ascii=true) }} {{ '😀'|tojson(ensure_ascii=true) }}",
       "\"Stra\\u00dfe \\u00c4\" \"\\ud83d\\ude00\""},
      {"{{ [[], {}, ()]|tojson(indent=1) }}", "[\n [],\n {},\n []\n]"},
  });
}

TEST(TemplateTest, Tests) {
  ExpectTexts({
      {"{{ n is odd }}{{ n is even }}{{ n is divisibleby 3 }}{{ n is "
       "divisibleby(2) }}",
       "TrueFalseTrueFalse"},
      {"{{ n is number }}{{ n is integer }}{{ f is float }}{{ a is string }}{{ "
       "d is mapping }}{{ l is sequence }}{{ l is iterable }}{{ none is none "
       "}}{{ true is boolean }}{{ true is true }}{{ 1 is true }}",
       "TrueTrueTrueTrueTrueTrueTrueTrueTrueTrueFalse"},
      {"{{ a is not string }}{{ nope is not defined }}{{ 'a' is in ['a'] }}{{ "
       "n is eq 3 }}{{ n is gt 2 }}{{ n is sameas 3 }}",
       "FalseTrueTrueTrueTrueTrue"},
      {"{{ 'a' is lower }}{{ 'A' is upper }}{{ range is callable }}{{ d is "
       "iterable }}{{ 5 is iterable }}",
       "TrueTrueTrueTrueFalse"},
  });
}

TEST(TemplateTest, Methods) {
  ExpectTexts({
      {"{{ a.upper() }}{{ a.split(', ') }}{{ 'a b  c'.split() }}{{ "
       "'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}",
       "HELLO, WORLD['Hello', 'World']['a', 'b', 'c']['a', 'b,c']['a,b', 'c']"},
      {"{{ ' a '.strip() }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ "
       "'xay'.strip('xy') }}",
       "a|a | a|a"},
      {"{{ a.startswith('He') }}{{ a.endswith(('x', 'ld')) }}", "TrueTrue"},
      {"{{ a.find('o') }}{{ a.rfind('o') }}{{ a.find('q') }}{{ a.index('W') "
       "}}{{ a.count('l') }}{{ u.find('Ä') }}",
       "48-1737"},
      {"{{ a.replace('l', 'L') }}{{ a.replace('l', 'L', 1) }}",
       "HeLLo, WorLdHeLlo, World"},
      {"{{ 'a\\nb\\r\\nc'.splitlines() }}{{ 'a=b=c'.partition('=') }}{{ "
       "'a=b=c'.rpartition('=') }}",
       "['a', 'b', 'c']('a', '=', 'b=c')('a=b', '=', 'c')"},
      {"{{ '{} {1}'.format(1, 2) if false else '{} {}'.format(1, 'b') }}{{ "
       "'{k}'.format(k=1) }}",
       "1 b1"},
      {"{{ 'ab'.isalpha() }}{{ '12'.isdigit() }}{{ 'a-b'.title() }}",
       "TrueTrueA-B"},
      {"{{ d.get('k') }}{{ d.get('q', 'no') }}{{ d.keys()|list }}{{ "
       "d.values()|list }}",
       "1no['k', 'j', 'z'][1, 'x<y', None]"},
      {"{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.py'.removesuffix('.py') "
       "}}{{ ','.join(['a', 'b']) }}{{ l.index(2) }}{{ l.count(1) }}",
       "xxa,b21"},
  });
}

TEST(TemplateTest, Globals) {
  ExpectTexts({
      {"{{ strftime_now('%Y-%m-%d %H:%M') }}", "2023-11-14 22:13"},
      {"{% set j = joiner(';') %}{{ j() }}a{{ j() }}b{{ j() }}c", "a;b;c"},
      {"{{ namespace(a=1).a }}", "1"},
  });
}

TEST(TemplateTest, GenerationBlocksAreRanges) {
  const auto text = Render(
      "a{% generation %}ä{{ n }}{% endgeneration %}b{% for m in ms %}"
      "{% generation %}{{ m.role }}{% endgeneration %}.{% endfor %}"
      "{% generation %}{% endgeneration %}");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->text, "aä3buser.assistant.");
  EXPECT_THAT(text->generation,
              ElementsAre(Pair(1, 4), Pair(5, 9), Pair(10, 19)));
  EXPECT_TRUE((*Template::Parse("{% generation %}{% endgeneration %}"))
                  ->marks_generation());
  EXPECT_FALSE((*Template::Parse("generation"))->marks_generation());
}

TEST(TemplateTest, ErrorsHaveTheirLine) {
  for (const auto& [source, error] :
       std::vector<std::pair<std::string, std::string>>{
           {"a\n{{ raise_exception('No ' ~ n) }}", "line 2: No 3"},
           {"{% if a %}\n\n", "line 2: the template ends where `endif`"},
           {"\n{{ a", "line 2: a tag has no end, }}"},
           {"{{ a ! b }}", "line 1: `!` isn't part of an expression"},
           {"{% macro %}", "line 1: expected a name, found %}"},
           {"{% include 'x' %}", "line 1: there is no tag `include` here"},
           {"{% endif %}", "line 1: there is no tag `endif` here"},
           {"a\n{# b", "line 2: a comment has no end, #}"},
           {"{{ 'a }}", "line 1: a text has no closing quote"},
           {"{{ (1] }}", "line 1: `]` closes nothing"},
           {"{% break %}", "line 1: `break` outside of a loop"},
           {"\n{{ nope.x }}", "line 2: 'nope' is undefined"},
           {"{{ d.q.x }}", "line 1: a dict has no 'q'"},
           {"{{ n() }}", "line 1: a int can't be called"},
           {"{{ a + n }}", "line 1: a str + a int isn't possible"},
           {"{{ a|nope }}", "line 1: there is no filter `nope`"},
           {"{{ a is nope }}", "line 1: there is no test `nope`"},
           {"{{ 1 / 0 }}", "line 1: a division by zero"},
           {"{% set d.x = 1 %}", "can be set of a namespace only"},
           {"{% for x, y in l %}{% endfor %}", "can't be iterated"},
           {"{{ l < 1 }}", "line 1: a list and a int have no order"}}) {
    EXPECT_THAT(ErrorOf(source), HasSubstr(error)) << source;
  }
}

// Python's values may be changed in place; a sandbox's may not.
TEST(TemplateTest, NothingIsReachedBeyondTheVariables) {
  for (const char* source :
       {"{{ l.append(1) }}", "{{ d.update({}) }}", "{{ l.pop() }}",
        "{{ a.__class__.x }}", "{{ ''.__class__.__mro__ }}", "{{ self.x }}",
        "{% import 'os' as os %}", "{{ open('x') }}"}) {
    EXPECT_NE(ErrorOf(source), "") << source;
  }
}

// Parts of Jinja and Python that no chat template uses.
TEST(TemplateTest, WhatIsLeftOutIsAnError) {
  for (const char* const source :
       {"{% raw %}{% endraw %}",
        "{% for i in l recursive %}{% endfor %}",
        "{% for i in l %}{{ loop.cycle(1, 2) }}{% endfor %}",
        "{% for i in l %}{{ loop.changed(i) }}{% endfor %}",
        "{{ cycler(1, 2) }}",
        "{{ l | batch(2) }}",
        "{{ l | slice(2) }}",
        "{{ a | center }}",
        "{{ a | truncate }}",
        "{{ a | wordcount }}",
        "{{ a | urlencode }}",
        "{{ d | attr('k') }}",
        "{{ a | forceescape }}",
        "{{ a.center(9) }}",
        "{{ a.ljust(9) }}",
        "{{ a.rjust(9) }}",
        "{{ a.zfill(9) }}",
        "{{ a.casefold() }}",
        "{{ a.isalnum() }}",
        "{{ a.isupper() }}",
        "{{ a.islower() }}",
        "{{ a.isdecimal() }}",
        "{{ a.isnumeric() }}",
        "{{ '{k}'.format_map(d) }}",
        "{{ l.index(1, 0) }}",
        "{{ a.find('o', 5) }}",
        "{{ a.startswith('l', 2) }}",
        "{{ ms | sort(attribute='n,role') }}",
        "{% macro m() %}{{ varargs }}{% endmacro %}",
        "{% macro m() %}{{ kwargs }}{% endmacro %}",
        "{{ '{0[k]}'.format(d) }}",
        "{{ '{0.k}'.format(d) }}",
        "{{ '{:06,}'.format(1) }}",
        "{{ '{:_}'.format(1) }}",
        "{{ '{:n}'.format(1) }}",
        "{{ '{:c}'.format(65) }}",
        "{{ '{!a}'.format(1) }}",
        "{{ '{:{w}}'.format('a', w=3) }}",
        "{{ '{:.3}'.format(f) }}",
        "{{ '%c' % 65 }}",
        "{{ '%a' % 1 }}",
        "{{ '%*d' % (3, 1) }}",
        "{{ '%ld' % 1 }}",
        "{{ '%.3d' % 1 }}"}) {
    EXPECT_NE(ErrorOf(source), "") << source;
  }
}

TEST(TemplateTest, NumbersOfAnySize) {
  ExpectTexts({
      {"{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 00 }} {{ 0x_ff }}",
       "31 5 15 1000 0 255"},
      {"{{ 12345678901234567890123 }} {{ 0xffffffffffffffffffff }}",
       "12345678901234567890123 1208925819614629174706175"},
      {"{{ -9223372036854775808 }} {{ 9223372036854775808 | tojson }}",
       "-9223372036854775808 9223372036854775808"},
      {"{{ 18446744073709551616 == 18446744073709551616 }}{{ "
       "18446744073709551616 > 5 }}{{ 18446744073709551616 is integer }}{{ "
       "'%d' % 18446744073709551616 }}",
       "TrueTrueTrue18446744073709551616"},
  });
  for (const char* const wrong :
       {"{{ 007 }}", "{{ 1__0 }}", "{{ 0b2 }}", "{{ 1_ }}", "{{ 1e400 }}"}) {
    EXPECT_NE(ErrorOf(wrong), "") << wrong;
  }
}

TEST(TemplateTest, FormatsArePythons) {
  ExpectTexts({
      {"{{ '{} {:>5}|{:*^7}|{:05d}'.format(1, 'a', 'b', 3) }}",
       "1     a|***b***|00003"},
      {"{{ '{:,.2f} {:x} {:#b} {:.1%} {:e}'.format(1234567.891, 255, 5, 0.256, "
       "12345.678) }}",
       "1,234,567.89 ff 0b101 25.6% 1.234568e+04"},
      {"{{ '{0} {n} {1!r:>6}'.format(3, 'a', n=none) }}", "3 None    'a'"},
      {"{{ '{:3}|'.format('a') }}{{ '{{}}'.format() }}", "a  |{}"},
      {"{{ '%5d|%-5s|%05.1f|%x|%+d|%%' % (3, 'a', 2.5, 255, 4) }}",
       "    3|a    |002.5|ff|+4|%"},
      {"{{ '%(a)s %(b)r' % {'a': 1, 'b': 'c'} }}", "1 'c'"},
      {"{{ '%s-%s' | format(1, 2) }}", "1-2"},
      {"{{ '{:+d}|{:=+8}|{:<05}|{:#06x}|{:08.3f}|{:,}|{:7.1%}'.format(3, 3, 3, "
       "255, -2.5, 1234567, 0.5) }}",
       "+3|+      3|30000|0x00ff|-002.500|1,234,567|  50.0%"},
  });
  for (const char* const wrong :
       {"{{ '{} {0}'.format(1) }}", "{{ '{:d}'.format('a') }}",
        "{{ '{:.2d}'.format(3) }}", "{{ '%d' % 'a' }}", "{{ '%s' % (1, 2) }}",
        "{{ '%s' | format(1, a=2) }}", "{{ '{:5}'.format(none) }}"}) {
    EXPECT_NE(ErrorOf(wrong), "") << wrong;
  }
}

TEST(TemplateTest, GroupsHaveADefault) {
  ExpectTexts({
      {"{% for name, items in [{'g': 'b'}, {}, {'g': 'A'}] | groupby('g', "
       "default='c') %}{{ name }}{{ items | length }};{% endfor %}",
       "A1;b1;c1;"},
  });
  EXPECT_NE(ErrorOf("{{ [{'g': 'b'}, {}] | groupby('g') }}"), "");
}

TEST(TemplateTest, ChainsOfIfsMayBeLong) {
  std::string chain = "{% if n == 0 %}0";
  std::string inlined = "{{ ";
  for (int i = 100; i < 1600; ++i) {
    chain += "{% elif n == " + std::to_string(i) + " %}" + std::to_string(i);
    if (i < 280) inlined += std::to_string(i) + " if n == 0 else ";
  }
  ExpectTexts(
      {{chain + "{% elif n == 3 %}three{% else %}else{% endif %}", "three"},
       {inlined + "'last' }}", "last"}});
}

// jinja2 and Python raise on each of these.
TEST(TemplateTest, WhatPythonRefusesIsAnError) {
  for (const char* const wrong : {
           "{% for i in [] %}{{ 1 | nofilter }}{% endfor %}",
           "{% for i in [] %}{{ 1 is notest }}{% endfor %}",
           "{{ x☃ }}",
           "{{ a² }}",
           "{% set true = 1 %}",
           "{% for i in l %}{% set loop = 1 %}{% endfor %}",
           "{% set x, = (1,) %}",
           "{% set ns = namespace(_x=1) %}",
           "{% macro m(a, a) %}{% endmacro %}",
           "{% macro m(a=1, b) %}{% endmacro %}",
           "{% macro m(caller) %}{% endmacro %}",
           "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
           "{% macro m(a) %}{% endmacro %}{{ m(b=1) }}",
           "{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}",
           "{% for i in l %}{% generation %}{% break %}{% endgeneration %}"
           "{% endfor %}",
           "{{ dict(x=1, x=2) }}",
           "{{ dict(**d, x=1) }}",
           "{{ range(*[1], 2) }}",
           "{{ a | upper(1) }}",
           "{{ a | trim(zzz=1) }}",
           "{{ a | replace('l') }}",
           "{{ a.upper(1) }}",
           "{{ a.strip(chars='H') }}",
           "{{ n is odd(1) }}",
           "{{ n is eq }}",
           "{{ strftime_now() }}",
           "{{ {[1]: 2} }}",
           "{{ [1] in d }}",
           "{{ [[1]] | unique | list }}",
           "{{ 0 ** -1 }}",
           "{{ 2.0 ** 10000 }}",
           "{{ x | int }}",
           "{{ l | indent }}",
           "{{ d | dictsort(by='x') }}",
           "{{ l | sum(start='a') }}",
           "{{ d[1:2] }}",
       }) {
    EXPECT_NE(ErrorOf(wrong), "") << wrong;
  }
  // Unknown names in an if are an error only where they are used.
  ExpectTexts({{"{% if false %}{{ 1 | nofilter }}{% endif %}ok", "ok"},
               {"{{ 1 if true else 2 | nofilter }}", "1"},
               {"{{ l.append is defined }}", "False"}});
}

}  // namespace
}  // namespace capstan::jinja
