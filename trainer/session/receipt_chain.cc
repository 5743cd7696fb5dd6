// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/receipt_chain.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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
// So that no other digest of the same text is taken for one of these.
constexpr char kFirst[] = "capstan receipts 1";

// -1: it has none.
int64_t StepOf(const Line& line) {
  for (const char* key : {kStep, kBegin}) {
    const auto found = line.find(key);
    if (found != line.end() && found->is_number_integer()) {
      return found->get<int64_t>();
    }
  }
  return -1;
}

std::string TextAt(const Line& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>()
                                                   : "";
}

std::string HashOf(const std::string& before, const std::string& text) {
  return Sha256Text(absl::StrCat(kFirst, "\n", before, "\n", text));
}

std::string TextOf(const Line& line) { return JsonText(line); }

std::string RunOf(const Line& line) {
  const auto run = line.find("run");
  return run == line.end() ? "" : TextOf(*run);
}

Line Without(Line line, std::initializer_list<const char*> keys) {
  for (const char* key : keys) line.erase(key);
  return line;
}

}  // namespace

const ReceiptChain::Known* ReceiptChain::Find(int64_t step) const {
  const auto found = steps_.find(step);
  return found == steps_.end() ? nullptr : &found->second;
}

absl::StatusOr<ReceiptChain::Hashes> ReceiptChain::HashesOf(
    const Line& line) const {
  const int64_t step = StepOf(line);
  if (!line.is_object() || step < 0) {
    return absl::DataLossError("is of no step");
  }
  const Line bare = Without(line, {kChain, kSeal});
  Hashes hashes;
  if (line.contains(kStep)) {
    const Known* const before = Find(step - 1);
    if (before == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("follows no line of step ", step - 1));
    }
    hashes.chain = HashOf(before->chain, TextOf(bare));
  } else {
    const Known* const same = Find(step);
    // Neither a resume nor its "how" is part of what was trained.
    hashes.chain = same == nullptr ? HashOf("", TextOf(Without(bare, {"how"})))
                   : RunOf(line) == run_ ? same->chain
                                         : HashOf(same->chain, RunOf(line));
  }
  Line chained = bare;
  chained[kChain] = hashes.chain;
  hashes.seal = HashOf(seal_, TextOf(chained));
  return hashes;
}

void ReceiptChain::Take(const Line& line) {
  chain_ = TextAt(line, kChain);
  seal_ = TextAt(line, kSeal);
  if (line.contains("run")) run_ = RunOf(line);
  steps_[StepOf(line)] = {chain_, TextAt(line, "weights")};
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
  if (TextAt(line, kChain) != hashes->chain) {
    return absl::DataLossError(
        "its chain isn't that of what it says and of the step before it");
  }
  if (TextAt(line, kSeal) != hashes->seal) {
    return absl::DataLossError(
        "its seal isn't that of what it says and of the line before it");
  }
  Take(line);
  return absl::OkStatus();
}

absl::StatusOr<Receipts> ReadReceipts(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kReceiptsFile);
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  Receipts receipts;
  int number = 0;
  for (const absl::string_view line_text : absl::StrSplit(text, '\n')) {
    ++number;
    if (line_text.empty()) continue;
    Line line = ParseJson<Line>(line_text);
    // A process died while it wrote this one. Were it another, the next line's
    // seal would say so.
    if (!line.is_object()) continue;
    const absl::Status status = receipts.chain.Check(line);
    if (!status.ok()) {
      const int64_t step = StepOf(line);
      return absl::DataLossError(absl::StrCat(
          path, ": line ", number,
          step < 0 ? "" : absl::StrCat(", of step ", step, ","), " ",
          status.message(),
          ": it, or a line before it, isn't what the run has written"));
    }
    receipts.lines.push_back(std::move(line));
  }
  return receipts;
}

}  // namespace capstan
