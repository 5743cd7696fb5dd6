// SPDX-License-Identifier: Apache-2.0
//
// Jinja templates as transformers renders chat templates: jinja2's immutable
// sandbox with trim_blocks, lstrip_blocks, loop controls, tojson as Python's
// json.dumps(.., ensure_ascii=False), raise_exception, strftime_now and
// {% generation %} (transformers/utils/chat_template_utils.py). Templates come
// from strangers: nothing that they do reaches beyond their variables, and
// work, depth and size are limited.
#ifndef CAPSTAN_TEXT_JINJA_TEMPLATE_H_
#define CAPSTAN_TEXT_JINJA_TEMPLATE_H_

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/value.h"

namespace capstan::jinja {

struct Limits {
  // Evaluated expressions, and items that functions go over: a few seconds.
  int64_t steps = 20'000'000;
  // Of texts made on the way, the output among them.
  int64_t text_bytes = int64_t{256} << 20;
  // Of calls in each other.
  int depth = 400;
};

// What becomes of line ends and spaces around tags and at the end.
enum class WhiteSpace {
  kTrimmed,  // jinja2's trim_blocks and lstrip_blocks
  kKept,     // jinja2's keep_trailing_newline alone
};

struct Rendered {
  std::string text;
  // Byte ranges of `text` that {% generation %} blocks wrote, ascending.
  std::vector<std::pair<int64_t, int64_t>> generation;
};

struct Parsed;

// Thread-safe.
class Template {
 public:
  // INVALID_ARGUMENT "line N: PROBLEM" if it isn't one, or uses a tag that is
  // none of transformers'.
  static absl::StatusOr<std::unique_ptr<Template>> Parse(
      absl::string_view source, const Limits& limits = Limits(),
      WhiteSpace white_space = WhiteSpace::kTrimmed);
  ~Template();

  // Whether it has {% generation %} blocks.
  bool marks_generation() const;

  // With a dict's keys as variables. INVALID_ARGUMENT with the words of
  // raise_exception or what else went wrong, "line N: PROBLEM";
  // RESOURCE_EXHAUSTED at a limit. `now` is the time of strftime_now, in
  // seconds since 1970.
  absl::StatusOr<Rendered> Render(const Value& variables,
                                  std::time_t now) const;
  // The same with an object's keys.
  absl::StatusOr<Rendered> Render(const nlohmann::ordered_json& variables,
                                  std::time_t now) const;

 private:
  Template(std::unique_ptr<const Parsed> parsed, const Limits& limits);

  const std::unique_ptr<const Parsed> parsed_;
  const Limits limits_;
};

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_TEMPLATE_H_
