// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/ad_transformer/ad_transformer_config.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/model/common/config_keys.h"

namespace capstan {
namespace ad_transformer {
namespace {

using Json = ConfigJson;

constexpr char kModelType[] = "ad_transformer";

// What is wrong with one key's value.
struct Problem {
  std::string key;
  std::string text;
};

// Coordinates and actions come as bytes.
constexpr int64_t kMostOfAByte = 255;

absl::optional<Problem> FindProblem(const Sizes& s) {
  struct Size {
    const char* name;
    int64_t value;
    int64_t most;
  };
  for (const Size& size :
       {Size{"embedding", s.embedding, 1 << 20},
        Size{"layers", s.layers, 1 << 16}, Size{"heads", s.heads, 1 << 16},
        Size{"feed_forward", s.feed_forward, 1 << 24},
        Size{"n_transit", s.n_transit, 1 << 20},
        Size{"grid", s.grid, kMostOfAByte},
        Size{"actions", s.actions, kMostOfAByte}}) {
    if (size.value < 1 || size.value > size.most) {
      return Problem{size.name, absl::StrCat("must be from 1 to ", size.most,
                                             ", is ", size.value)};
    }
  }
  if (s.embedding % s.heads != 0) {
    return Problem{"heads", absl::StrCat("must divide embedding, which is ",
                                         s.embedding, ", is ", s.heads)};
  }
  if (!(s.dropout >= 0.0 && s.dropout < 1.0)) {
    return Problem{
        "dropout",
        absl::StrCat("must be at least 0 and below 1, is ", s.dropout)};
  }
  return absl::nullopt;
}

// The sizes in a config.json, by name.
template <typename Body>
void ForSizes(Sizes& s, const Body& body) {
  body("embedding", s.embedding);
  body("layers", s.layers);
  body("heads", s.heads);
  body("feed_forward", s.feed_forward);
  body("n_transit", s.n_transit);
  body("grid", s.grid);
  body("actions", s.actions);
}

}  // namespace

absl::StatusOr<Sizes> SizesOf(const Config& config) {
  const auto or_default = [](int64_t value, int64_t otherwise) {
    return value == 0 ? otherwise : value;
  };
  Sizes s;
  s.embedding = config.embedding();
  s.layers = config.layers();
  s.heads = config.heads();
  s.n_transit = config.n_transit();
  s.grid = or_default(config.grid(), 9);
  s.actions = or_default(config.actions(), 5);
  s.compressed = config.compressed();
  if (config.has_dropout()) s.dropout = config.dropout();
  // Before the product: embedding may be anything.
  s.feed_forward = or_default(config.feed_forward(), 1);
  absl::optional<Problem> problem = FindProblem(s);
  if (problem.has_value()) return FieldError(problem->key, problem->text);
  if (config.feed_forward() == 0) s.feed_forward = 4 * s.embedding;
  return s;
}

absl::StatusOr<Sizes> ReadSizes(const std::string& folder) {
  const std::string path = folder + "/config.json";
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ParseObject(path, text));
  const auto fail = [&](absl::string_view key, absl::string_view problem) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", key, " ", problem));
  };
  if (json.value("model_type", Json()) != kModelType) {
    return fail("model_type", absl::StrCat("must be \"", kModelType, "\""));
  }
  Sizes s;
  absl::Status status;
  ForSizes(s, [&](const char* key, int64_t& value) {
    const Json found = json.value(key, Json());
    if (const absl::optional<int64_t> integer = JsonInteger(found)) {
      value = *integer;
    } else if (status.ok()) {
      status =
          fail(key, absl::StrCat("must be an integer below 2^63, is ",
                                 found.is_null() ? "missing" : found.dump()));
    }
  });
  CAPSTAN_RETURN_IF_ERROR(status);
  const Json compressed = json.value("compressed", Json());
  if (!compressed.is_boolean()) {
    return fail("compressed", "must be true or false");
  }
  s.compressed = compressed.get<bool>();
  const Json dropout = json.value("dropout", Json(s.dropout));
  if (!dropout.is_number()) return fail("dropout", "must be a number");
  s.dropout = dropout.get<double>();
  const absl::optional<Problem> problem = FindProblem(s);
  if (problem.has_value()) return fail(problem->key, problem->text);
  return s;
}

absl::Status WriteSizes(const Sizes& sizes, const std::string& folder,
                        c10::ScalarType dtype) {
  Json json;
  json["model_type"] = kModelType;
  json["architectures"] = {"AdTransformer"};
  Sizes s = sizes;
  ForSizes(s, [&](const char* key, int64_t& value) { json[key] = value; });
  json["compressed"] = s.compressed;
  json["dropout"] = s.dropout;
  json["dtype"] = DtypeName(dtype);
  return WriteWholeFile(folder + "/config.json", json.dump(2) + "\n");
}

}  // namespace ad_transformer
}  // namespace capstan
