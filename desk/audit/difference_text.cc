// SPDX-License-Identifier: Apache-2.0
#include "desk/audit/difference_text.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace capstan {
namespace {

struct ReceiptKey {
  const char* key;
  const char* meaning;
  const char* value;  // what its value is
  bool number;        // the bits of a float64 number
};

constexpr ReceiptKey kReceiptKeys[] = {
    {"samples", "which rows the step reads (the order of the data)",
     "the digest of their numbers", false},
    {"forgotten", "which rows have weight zero (train.forgotten_rows)",
     "the list of them", false},
    {"rows",
     "what is in the rows (train_data, how they are read, or the answers that "
     "were sampled)",
     "the digest of the rows", false},
    {"lr", "the learning rate (optimizer, schedule)", "lr", true},
    {"loss", "the loss: what forward computes from the same rows", "loss",
     true},
    {"grad_norm", "the gradients' norm: what backward computes", "grad_norm",
     true},
    {"weights", "the weights after the update", "the digest of the weights",
     false},
    {"state", "the state of optimizer and strategy after the update",
     "the digest of the state", false},
};

ReceiptKey KeyNamed(const std::string& name) {
  for (const ReceiptKey& key : kReceiptKeys) {
    if (name == key.key) return key;
  }
  return {name.c_str(), name.c_str(), name.c_str(), false};
}

// "0.003 (3f689374bc6a7efa)" of a number's bits.
std::string ShownValue(const std::string& value, bool number) {
  if (value.empty()) return "unset";
  uint64_t bits = 0;
  if (!number || !absl::SimpleHexAtoi(value, &bits)) return value;
  double decimal = 0.0;
  static_assert(sizeof(decimal) == sizeof(bits), "a float64 number");
  std::memcpy(&decimal, &bits, sizeof(decimal));
  return absl::StrFormat("%.17g (%s)", decimal, value);
}

std::string WasAndIs(const ReceiptDifference& difference, bool number) {
  return absl::StrCat(" was ", ShownValue(difference.recorded, number),
                      ", and now it is ", ShownValue(difference.again, number));
}

}  // namespace

std::string DifferenceText(const ReceiptDifference& difference,
                           bool deterministic) {
  absl::string_view setting = difference.key;
  if (absl::ConsumePrefix(&setting, kOfRun)) {
    return absl::StrCat("this isn't the run of the receipts: ", setting,
                        WasAndIs(difference, /*number=*/false));
  }
  if (difference.key == kBeginning) {
    return absl::StrCat(difference.step == 0
                            ? "the initial weights aren't"
                            : absl::StrCat("the checkpoint after step ",
                                           difference.step, " isn't"),
                        " what the receipts have: the digest of the weights",
                        WasAndIs(difference, /*number=*/false));
  }
  const ReceiptKey key = KeyNamed(difference.key);
  std::string text = absl::StrCat("step ", difference.step,
                                  " run again differs: ", key.meaning, "; ",
                                  key.value, WasAndIs(difference, key.number));
  if (!deterministic && difference.key != "samples") {
    absl::StrAppend(
        &text,
        ". The run wasn't deterministic (train.deterministic): with other "
        "ranks or threads, another strategy or on another machine its sums may "
        "be rounded otherwise");
  }
  return text;
}

}  // namespace capstan
