// SPDX-License-Identifier: Apache-2.0
//
// The filters of texts, and what all filters share.
#ifndef CAPSTAN_TEXT_JINJA_FILTERS_H_
#define CAPSTAN_TEXT_JINJA_FILTERS_H_

#include <cstdint>
#include <string>

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace capstan::jinja {

using FilterFunction = Value (*)(Interpreter& interpreter, const Value& of,
                                 const Arguments& given);
// Whether there is one of that name.
bool IsFilter(const std::string& name);
bool IsTest(const std::string& name);

// Throws Error, which names `what`, unless it is an integer or a bool.
int64_t IntegerOf(const Value& value, const char* what);

Value UpperFilter(Interpreter& interpreter, const Value& of,
                  const Arguments& given);
Value LowerFilter(Interpreter& interpreter, const Value& of,
                  const Arguments& given);
Value TitleFilter(Interpreter& interpreter, const Value& of,
                  const Arguments& given);
Value CapitalizeFilter(Interpreter& interpreter, const Value& of,
                       const Arguments& given);
Value TrimFilter(Interpreter& interpreter, const Value& of,
                 const Arguments& given);
Value StringFilter(Interpreter& interpreter, const Value& of,
                   const Arguments& given);
Value ReplaceFilter(Interpreter& interpreter, const Value& of,
                    const Arguments& given);
Value EscapeFilter(Interpreter& interpreter, const Value& of,
                   const Arguments& given);
Value CenterFilter(Interpreter& interpreter, const Value& of,
                   const Arguments& given);
Value FormatFilter(Interpreter& interpreter, const Value& of,
                   const Arguments& given);
Value WordCountFilter(Interpreter& interpreter, const Value& of,
                      const Arguments& given);
Value IndentFilter(Interpreter& interpreter, const Value& of,
                   const Arguments& given);
Value TruncateFilter(Interpreter& interpreter, const Value& of,
                     const Arguments& given);
Value UrlEncodeFilter(Interpreter& interpreter, const Value& of,
                      const Arguments& given);
Value ToJsonFilter(Interpreter& interpreter, const Value& of,
                   const Arguments& given);

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_FILTERS_H_
