// SPDX-License-Identifier: Apache-2.0
#include "desk/audit/config_that_ran.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "desk/run_folder/config_fields.h"

namespace capstan {
namespace {

// Of the newest process; null: there is none.
const ReceiptChain::Line* NewestRun(const Receipts& receipts) {
  const ReceiptChain::Line* newest = nullptr;
  for (const ReceiptChain::Line& line : receipts.lines) {
    const auto run = line.find("run");
    if (run != line.end() && run->is_object()) newest = &*run;
  }
  return newest;
}

// A number, a bool, an enum or a plugin's name, and no path's contents.
bool IsPlainValue(absl::string_view value) {
  return !value.empty() &&
         std::all_of(value.begin(), value.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '+' ||
                  c == '-';
         });
}

bool IsNumber(const std::string& value) {
  float number = 0.0F;
  return absl::SimpleAtof(value, &number);
}

// As float32, which a config's fields may be where config.json has more digits.
bool SameNumber(const std::string& a, const std::string& b) {
  float left = 0.0F, right = 0.0F;
  return absl::SimpleAtof(a, &left) && absl::SimpleAtof(b, &right) &&
         left == right;
}

// Whether the run's identity has the field as the config says it
// (run_identity.h). A model's are config.json's, where others than numbers may
// have another form.
bool IsAsWritten(absl::string_view name, const std::string& value) {
  if (absl::StrContains(name, "[")) return false;
  if (absl::StartsWith(name, "model.")) return IsNumber(value);
  for (const char* slot : {"model", "objective", "optimizer", "train_data",
                           "train", "batch", "strategy"}) {
    if (name == slot) return true;
    if (absl::StartsWith(name, absl::StrCat(slot, "."))) {
      return IsPlainValue(value);
    }
  }
  return false;
}

}  // namespace

std::string ConfigDifference(const std::string& config_text,
                             const Receipts& receipts) {
  const ReceiptChain::Line* const run = NewestRun(receipts);
  if (run == nullptr) return "";
  const FieldLists fields = FieldsOfConfig(config_text);
  for (const auto& [name, value] : run->items()) {
    std::string had = ReceiptText(*run, name);
    // "capstan.text, 7040 bytes, .."
    if (name == "train_data") had = had.substr(0, had.find(','));
    if (!IsAsWritten(name, had)) continue;
    const auto found = fields.find(name);
    const std::string has = found == fields.end() ? "" : found->second.front();
    if (has == had || SameNumber(has, had)) continue;
    // What its config leaves open, a model has settled.
    if (absl::StartsWith(name, "model.") && !IsNumber(has)) continue;
    return absl::StrCat(name, ": ", has.empty() ? "unset" : has,
                        ", the run had ", had);
  }
  return "";
}

}  // namespace capstan
