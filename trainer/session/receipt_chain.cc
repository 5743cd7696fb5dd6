// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/receipt_chain.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "base/error_code.h"
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
  if (step < 0) return absl::DataLossError("it is of no step");
  const Line bare = Without(line, {kChain, kSeal});
  const Line trained = Without(bare, {"how"});
  Hashes hashes;
  if (IsStepReceipt(line)) {
    const Known* const before = Find(step - 1);
    if (before == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("it follows no line of step ", step - 1));
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
        "its chain isn't the hash of what it says and of the step before it");
  }
  if (ReceiptText(line, kSeal) != hashes->seal) {
    return absl::DataLossError(
        "its seal isn't the hash of what it says and of the line before it");
  }
  Take(line);
  return absl::OkStatus();
}

namespace {

// A file's lines, checked one by one.
class LinesOfReceipts {
 public:
  LinesOfReceipts(std::string path, const std::function<void(Line)>& use)
      : path_(std::move(path)), use_(use) {}

  // `ended`: by a newline.
  absl::Status Take(const std::string& text, bool ended);
  // Behind the last.
  absl::Status End() const;

  Receipts& receipts() { return receipts_; }

 private:
  // Of the newest half line, which isn't where a killed process leaves one.
  absl::Status NoReceipt() const;
  absl::Status Changed(int64_t number, int64_t step,
                       absl::string_view how) const;

  const std::string path_;
  const std::function<void(Line)>& use_;
  Receipts receipts_;
  int64_t number_ = 0;
  bool half_ = false;  // the newest line
  bool half_ended_ = false;
};

absl::Status LinesOfReceipts::Changed(int64_t number, int64_t step,
                                      absl::string_view how) const {
  return WithCode(absl::DataLossError(absl::StrCat(
                      path_, ": line ", number,
                      step < 0 ? "" : absl::StrCat(" (step ", step, ")"), " ",
                      how, "; put the file as the run wrote it in its place")),
                  "receipts/chain");
}

absl::Status LinesOfReceipts::NoReceipt() const {
  return Changed(receipts_.half_lines.back(), -1,
                 "isn't as the run wrote it: it is no receipt");
}

absl::Status LinesOfReceipts::Take(const std::string& text, bool ended) {
  ++number_;
  Line line = ParseJson<Line>(text);
  if (!line.is_object()) {
    // A process died while it wrote it, or still writes it.
    if (half_) return NoReceipt();
    half_ = true;
    half_ended_ = ended;
    receipts_.half_lines.push_back(number_);
    return absl::OkStatus();
  }
  // Only one that goes on finds half a line, and ends it.
  if (half_ && !line.contains("run")) return NoReceipt();
  half_ = false;
  // The hashes are of what was parsed: a key that is there twice, or a space,
  // isn't in it.
  if (JsonText(line) != text) {
    return Changed(number_, StepOfReceipt(line),
                   "isn't as the run wrote it: its bytes aren't those of what "
                   "it says (a key that is there twice, a space, another end "
                   "of the line)");
  }
  const absl::Status status = receipts_.chain.Check(line);
  if (!status.ok()) {
    return Changed(
        number_, StepOfReceipt(line),
        absl::StrCat("isn't as the run wrote it, or a line before it isn't: ",
                     status.message()));
  }
  if (use_ != nullptr) use_(std::move(line));
  return absl::OkStatus();
}

absl::Status LinesOfReceipts::End() const {
  return half_ && half_ended_ ? NoReceipt() : absl::OkStatus();
}

// Without `lines`, which `use` gets.
absl::StatusOr<Receipts> ReadLines(const std::string& folder,
                                   const std::function<void(Line)>& use) {
  const std::string path = absl::StrCat(folder, "/", kReceiptsFile);
  if (!PathExists(path)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  // A pipe or a device would keep whoever reads it waiting.
  if (!IsRegularFile(path)) {
    return WithCode(
        absl::DataLossError(absl::StrCat(
            path,
            " isn't a file: put the file as the run wrote it in its place")),
        "receipts/chain");
  }
  MapOptions options;
  options.in_order = options.may_be_empty = true;
  CAPSTAN_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path, options));
  LinesOfReceipts lines(path, use);
  absl::string_view rest = file->bytes();
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    CAPSTAN_RETURN_IF_ERROR(
        lines.Take(std::string(rest.substr(0, end)), end != rest.npos));
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
  }
  CAPSTAN_RETURN_IF_ERROR(lines.End());
  CAPSTAN_RETURN_IF_ERROR(file->Check());
  return std::move(lines.receipts());
}

}  // namespace

absl::StatusOr<ReceiptChain> ReadReceipts(
    const std::string& folder, const std::function<void(Line)>& use) {
  CAPSTAN_ASSIGN_OR_RETURN(Receipts receipts, ReadLines(folder, use));
  return std::move(receipts.chain);
}

absl::StatusOr<Receipts> ReadReceipts(const std::string& folder) {
  std::vector<Line> lines;
  CAPSTAN_ASSIGN_OR_RETURN(Receipts receipts,
                           ReadLines(folder, [&lines](Line line) {
                             lines.push_back(std::move(line));
                           }));
  receipts.lines = std::move(lines);
  return receipts;
}

}  // namespace capstan
