// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/template.h"

#include <nlohmann/json.hpp>

#include "absl/memory/memory.h"
#include "base/json.h"
#include "text/jinja/ast.h"
#include "text/jinja/interpreter.h"
#include "text/tokenizer/unicode.h"

namespace capstan::jinja {
namespace {

// Templates in use have up to 40,000 characters.
constexpr size_t kMostBytes = 1 << 20;

absl::Status ToStatus(const Error& error) {
  return dynamic_cast<const LimitError*>(&error) != nullptr
             ? absl::ResourceExhaustedError(error.what())
             : absl::InvalidArgumentError(error.what());
}

}  // namespace

Template::Template(std::unique_ptr<const Parsed> parsed, const Limits& limits)
    : parsed_(std::move(parsed)), limits_(limits) {}

Template::~Template() = default;

bool Template::marks_generation() const { return parsed_->marks_generation; }

absl::StatusOr<Rendered> Template::Render(const Value& variables,
                                          std::time_t now) const {
  try {
    Interpreter interpreter(limits_, now);
    interpreter.Run(parsed_->body, variables);
    return Rendered{std::move(interpreter.text()),
                    std::move(interpreter.generation())};
  } catch (const Error& error) {
    return ToStatus(error);
  }
}

absl::StatusOr<Rendered> Template::Render(
    const nlohmann::ordered_json& variables, std::time_t now) const {
  try {
    const std::string text = JsonText(variables);
    return Render(Value::FromJson(text), now);
  } catch (const Error& error) {
    return ToStatus(error);
  }
}

absl::StatusOr<std::unique_ptr<Template>> Template::Parse(
    absl::string_view source, const Limits& limits, WhiteSpace white_space) {
  if (source.size() > kMostBytes) {
    return absl::InvalidArgumentError("the template is larger than 1 MiB");
  }
  if (!tokenizer::IsUtf8(source)) {
    return absl::InvalidArgumentError("the template isn't UTF-8");
  }
  try {
    return absl::WrapUnique(
        new Template(std::make_unique<const Parsed>(capstan::jinja::Parse(
                         std::string(source), white_space)),
                     limits));
  } catch (const Error& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace capstan::jinja
