// SPDX-License-Identifier: Apache-2.0
#include "text/rows/rows.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/match.h"

namespace capstan {
namespace {

// By type. Plugins are loaded by one thread.
std::map<std::string, VisitRowsFunction>& Registered() {
  static auto* const functions = new std::map<std::string, VisitRowsFunction>;
  return *functions;
}

}  // namespace

bool HasRowsName(absl::string_view name) {
  for (const char* packed : {".gz", ".gzip", ".zst", ".zstd"}) {
    if (absl::EndsWithIgnoreCase(name, packed)) {
      name = name.substr(0, name.rfind('.'));
      break;
    }
  }
  for (const char* end :
       {".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet"}) {
    if (absl::EndsWithIgnoreCase(name, end)) return true;
  }
  return false;
}

int64_t RowText::trained() const {
  if (labels.empty()) return 0;
  return std::count_if(labels.begin() + 1, labels.end(),
                       [](int64_t label) { return label >= 0; });
}

int64_t DataRow::trained() const {
  if (texts.size() == 2 && texts[0].ids == texts[1].ids) return 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const RowText& text : texts) least = std::min(least, text.trained());
  return least;
}

RegisterRows::RegisterRows(const char* config_type, VisitRowsFunction visit) {
  Registered()[config_type] = visit;
}

VisitRowsFunction VisitRowsOf(const std::string& config_type) {
  const auto found = Registered().find(config_type);
  return found == Registered().end() ? nullptr : found->second;
}

}  // namespace capstan
