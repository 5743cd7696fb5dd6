// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/receipt_chain.h"

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan {
namespace {

using Line = ReceiptChain::Line;

constexpr char kBegin[] = "begin";
constexpr char kStep[] = "step";
constexpr char kChain[] = "chain";
constexpr char kSeal[] = "seal";
constexpr char kWeights[] = "weights";
// So that no other digest of the same text is taken for one of these.
constexpr char kFirst[] = "capstan receipts 1";

std::string HashOf(const std::string& before, const std::string& text) {
  return Sha256Text(absl::StrCat(kFirst, "\n", before, "\n", text));
}

std::string RunOf(const Line& line) {
  const auto run = line.find("run");
  return run == line.end() ? "" : JsonText(*run);
}

Line Without(Line line, std::initializer_list<const char*> keys) {
  for (const char* key : keys) line.erase(key);
  return line;
}

}  // namespace

bool IsStepReceipt(const Line& line) {
  return line.is_object() && line.contains(kStep);
}

int64_t StepOfReceipt(const Line& line) {
  if (!line.is_object()) return -1;
  const auto found = line.find(IsStepReceipt(line) ? kStep : kBegin);
  return found == line.end() ? -1 : JsonInteger(*found).value_or(-1);
}

std::string ReceiptText(const Line& line, const std::string& key) {
  if (!line.is_object()) return "";
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>()
                                                   : "";
}

void ReceiptChain::ForgetBefore(int64_t step) {
  steps_.erase(steps_.begin(), steps_.lower_bound(step));
}

const ReceiptChain::Known* ReceiptChain::Find(int64_t step) const {
  const auto found = steps_.find(step);
  return found == steps_.end() ? nullptr : &found->second;
}

absl::StatusOr<ReceiptChain::Hashes> ReceiptChain::HashesOf(
    const Line& line) const {
  const int64_t step = StepOfReceipt(line);
  if (step < 0) return absl::DataLossError("is of no step");
  const Line bare = Without(line, {kChain, kSeal});
  const Line trained = Without(bare, {"how"});
  Hashes hashes;
  if (IsStepReceipt(line)) {
    const Known* const before = Find(step - 1);
    if (before == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("follows no line of step ", step - 1));
    }
    hashes.chain = HashOf(before->chain, JsonText(trained));
  } else {
    const Known* const same = Find(step);
    // A resume from there trains nothing else.
    hashes.chain =
        same == nullptr ? HashOf("", JsonText(trained))
        : RunOf(line) == run_ && ReceiptText(line, kWeights) == same->weights
            ? same->chain
            : HashOf(same->chain, JsonText(trained));
  }
  Line chained = bare;
  chained[kChain] = hashes.chain;
  hashes.seal = HashOf(seal_, JsonText(chained));
  return hashes;
}

void ReceiptChain::Take(const Line& line) {
  chain_ = ReceiptText(line, kChain);
  seal_ = ReceiptText(line, kSeal);
  if (line.contains("run")) run_ = RunOf(line);
  steps_[StepOfReceipt(line)] = {chain_, ReceiptText(line, kWeights)};
}

absl::Status ReceiptChain::Add(Line* line) {
  CAPSTAN_ASSIGN_OR_RETURN(Hashes hashes, HashesOf(*line));
  (*line)[kChain] = std::move(hashes.chain);
  (*line)[kSeal] = std::move(hashes.seal);
  Take(*line);
  return absl::OkStatus();
}

absl::Status ReceiptChain::Check(const Line& line) {
  const absl::StatusOr<Hashes> hashes = HashesOf(line);
  if (!hashes.ok()) {
    return absl::DataLossError(hashes.status().message());
  }
  if (ReceiptText(line, kChain) != hashes->chain) {
    return absl::DataLossError(
        "its chain isn't that of what it says and of the step before it");
  }
  if (ReceiptText(line, kSeal) != hashes->seal) {
    return absl::DataLossError(
        "its seal isn't that of what it says and of the line before it");
  }
  Take(line);
  return absl::OkStatus();
}

absl::StatusOr<ReceiptChain> ReadReceipts(
    const std::string& folder, const std::function<void(Line)>& use) {
  const std::string path = absl::StrCat(folder, "/", kReceiptsFile);
  if (!PathExists(path)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  std::ifstream file(path);
  ReceiptChain chain;
  int64_t number = 0;
  int64_t torn = 0;  // the line before, if it isn't whole
  for (std::string text; std::getline(file, text);) {
    ++number;
    Line line = ParseJson<Line>(text);
    const bool whole = line.is_object();
    absl::Status status;
    if (torn > 0 && !(whole && line.contains("run"))) {
      number = torn;
      status = absl::DataLossError("is no receipt");
    } else if (whole) {
      status = chain.Check(line);
    } else if (file.eof()) {
      break;  // a process died while it wrote it, or still writes it
    } else {
      // Likewise, if the next one is of a process that went on.
      torn = number;
      continue;
    }
    if (!status.ok()) {
      const int64_t step = torn > 0 && !whole ? -1 : StepOfReceipt(line);
      return absl::DataLossError(absl::StrCat(
          path, ": line ", number,
          step < 0 ? "" : absl::StrCat(", of step ", step, ","), " ",
          status.message(),
          ": it, or a line before it, isn't what the run has written"));
    }
    torn = 0;
    if (use != nullptr) use(std::move(line));
  }
  if (torn > 0) {
    return absl::DataLossError(absl::StrCat(path, ": line ", torn,
                                            " is no receipt: it isn't what the "
                                            "run has written"));
  }
  if (file.bad() || (number == 0 && !file.eof())) {
    return absl::DataLossError(absl::StrCat(path, " can't be read"));
  }
  return chain;
}

absl::StatusOr<Receipts> ReadReceipts(const std::string& folder) {
  Receipts receipts;
  CAPSTAN_ASSIGN_OR_RETURN(receipts.chain,
                           ReadReceipts(folder, [&receipts](Line line) {
                             receipts.lines.push_back(std::move(line));
                           }));
  return receipts;
}

}  // namespace capstan
