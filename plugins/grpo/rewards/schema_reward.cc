// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/confined_child.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/grpo/rewards/block.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/grpo/rewards/row_field.h"

namespace capstan::grpo {
namespace {

using Json = nlohmann::json;
using Adapter = valijson::adapters::NlohmannJsonAdapter;

// More than any schema's check takes, but for patterns that try too much.
constexpr int64_t kCpuSeconds = 10;
constexpr uint64_t kMostMessage = 1 << 10;

// A schema and the JSON that it refers to.
struct CheckedSchema {
  Json json;
  valijson::Schema schema;
};

absl::StatusOr<std::unique_ptr<CheckedSchema>> ParseSchema(
    absl::string_view text) {
  auto parsed = std::make_unique<CheckedSchema>();
  parsed->json = ParseJson<Json>(text);
  if (!parsed->json.is_object() && !parsed->json.is_boolean()) {
    return absl::InvalidArgumentError("isn't a JSON object");
  }
  try {
    valijson::SchemaParser(valijson::SchemaParser::kDraft7)
        .populateSchema(Adapter(parsed->json), parsed->schema);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("isn't a JSON schema: ", error.what()));
  }
  return parsed;
}

bool Satisfies(absl::string_view text, const valijson::Schema& schema) {
  const Json json = ParseJson<Json>(LastBlock(text));
  return !json.is_discarded() &&
         valijson::Validator().validate(schema, Adapter(json), nullptr);
}

// The library's regular expressions recurse, and some never end: answers are
// looked at in a child, whose end is a 0.
class JsonSchemaReward final : public RewardFunction {
 public:
  // Either `schema` or `field` is set.
  JsonSchemaReward(std::unique_ptr<CheckedSchema> schema, std::string field)
      : schema_(std::move(schema)), field_(std::move(field)) {}

  absl::Status CheckRow(absl::string_view row) const override {
    return schema_ != nullptr ? absl::OkStatus() : SchemaText(row).status();
  }

  absl::StatusOr<std::vector<double>> Score(
      absl::Span<const Answer> answers) override {
    std::vector<double> values;
    ChildLimits limits;
    limits.cpu_seconds = kCpuSeconds;
    while (values.size() < answers.size()) {
      const absl::Span<const Answer> left = answers.subspan(values.size());
      CAPSTAN_ASSIGN_OR_RETURN(
          const std::unique_ptr<ConfinedChild> child,
          ConfinedChild::Start(limits,
                               [&](const ConfinedChild::Parent& parent) {
                                 ScoreAll(left, parent);
                               }));
      while (values.size() < answers.size()) {
        const absl::StatusOr<std::string> said = child->Receive(kMostMessage);
        if (!said.ok() && !child->ended()) return said.status();
        values.push_back(!said.ok()      ? 0.0
                         : said->empty() ? std::nan("")
                                         : (*said)[0] - '0');
        if (!said.ok()) break;
      }
    }
    return values;
  }

 private:
  // Of a row; "" if the field is null.
  absl::StatusOr<std::string> SchemaText(absl::string_view row) const {
    CAPSTAN_ASSIGN_OR_RETURN(const nlohmann::ordered_json value,
                             RowField(row, field_));
    return value.is_null() ? "" : TextOf(value);
  }

  // In the child: "0" or "1" for each, "" where it doesn't apply.
  void ScoreAll(absl::Span<const Answer> answers,
                const ConfinedChild::Parent& parent) const {
    for (const Answer& answer : answers) {
      const absl::StatusOr<std::string> verdict = Verdict(answer);
      if (!verdict.ok()) {
        parent.Send(verdict.status());
        return;
      }
      if (!parent.Send(absl::string_view(*verdict))) return;
    }
  }

  absl::StatusOr<std::string> Verdict(const Answer& answer) const {
    std::unique_ptr<CheckedSchema> of_row;
    if (schema_ == nullptr) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::string text, SchemaText(answer.row));
      if (text.empty()) return std::string();
      absl::StatusOr<std::unique_ptr<CheckedSchema>> parsed = ParseSchema(text);
      if (!parsed.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the row's field \"", field_, "\", ", Quoted(text),
                         ", ", parsed.status().message()));
      }
      of_row = *std::move(parsed);
    }
    const CheckedSchema& schema = of_row != nullptr ? *of_row : *schema_;
    return std::string(Satisfies(answer.text, schema.schema) ? "1" : "0");
  }

  const std::unique_ptr<CheckedSchema> schema_;
  const std::string field_;
};

}  // namespace

MadeReward NewJsonSchema(const JsonSchema& config) {
  const int set = !config.path().empty() + !config.schema().empty() +
                  !config.field().empty();
  if (set != 1) {
    return FieldError("path", "one of path, schema and field must be set");
  }
  if (!config.field().empty()) {
    return std::make_unique<JsonSchemaReward>(nullptr, config.field());
  }
  const char* const field = config.path().empty() ? "schema" : "path";
  std::string text = config.schema();
  if (text.empty()) {
    absl::StatusOr<std::string> read = ReadWholeFile(config.path());
    if (!read.ok()) return FieldError(field, read.status().message());
    text = *std::move(read);
  }
  absl::StatusOr<std::unique_ptr<CheckedSchema>> schema = ParseSchema(text);
  if (!schema.ok()) return FieldError(field, schema.status().message());
  return std::make_unique<JsonSchemaReward>(*std::move(schema), "");
}

}  // namespace capstan::grpo
