// SPDX-License-Identifier: Apache-2.0
//
// The lines of OUTPUT_DIR/receipts.jsonl (docs/receipts.md): their hashes, and
// how they are checked.
#ifndef CAPSTAN_TRAINER_SESSION_RECEIPT_CHAIN_H_
#define CAPSTAN_TRAINER_SESSION_RECEIPT_CHAIN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

inline constexpr char kReceiptsFile[] = "receipts.jsonl";

// A line is an object of one of two kinds, to which the chain adds two keys.
//
//   {"begin": 0, "run": {..}, "how": {..}, "weights": .., "state": ..}
//     A process of the run has begun after that step, or the weights were
//     replaced there. "run" is what identifies what is trained
//     (run_identity.h).
//   {"step": 1, "samples": .., "rows": .., "loss": .., .., "state": ..}
//     With "forgotten": "7 9" those of the step's samples that had weight zero
//     (train.forgotten_rows).
//
// Either may have a "how": what mustn't matter for what is trained, such as
// strategy, ranks and libraries; it holds until the next one.
//
// "chain" is the SHA-256 digest of the step before it and of this line's step,
// or of its run. It says what was trained: two runs that trained the same have
// the same, whatever their "how", and however often they were resumed from the
// weights that they had. "seal" is that of the line before it and of all of
// this line: it says that the file is as it was written.
class ReceiptChain {
 public:
  using Line = nlohmann::ordered_json;

  // Adds both keys, and takes the line into the chain. FAILED_PRECONDITION if
  // the line is of a step whose predecessor the chain doesn't have.
  absl::Status Add(Line* line);

  // Takes a line that has both. DATA_LOSS says what doesn't hold.
  absl::Status Check(const Line& line);

  // Forgets the steps before `step`, on which no line may then follow.
  void ForgetBefore(int64_t step);

  // Of the newest line; "": there is none.
  const std::string& chain() const { return chain_; }
  const std::string& seal() const { return seal_; }
  // What the newest line of a step, of either kind, says; null: there is none.
  struct Known {
    std::string chain;
    std::string weights;
  };
  const Known* Find(int64_t step) const;

 private:
  struct Hashes {
    std::string chain;
    std::string seal;
  };
  absl::StatusOr<Hashes> HashesOf(const Line& line) const;
  void Take(const Line& line);

  std::string chain_;
  std::string seal_;
  std::string run_;  // the latest "run", as text
  std::map<int64_t, Known> steps_;
};

// Of either kind; -1: the line has none.
int64_t StepOfReceipt(const ReceiptChain::Line& line);
bool IsStepReceipt(const ReceiptChain::Line& line);
// "" if there is no such text.
std::string ReceiptText(const ReceiptChain::Line& line, const std::string& key);

// Reads a run's folder, checks all lines, and calls `use` with each, in order;
// it may be null. An incomplete line, which a killed process leaves at the end
// or before the line of the next one, is passed over; any other must be what a
// run writes, to the byte. NOT_FOUND: the folder has none. DATA_LOSS names the
// file, the line, its step and what doesn't hold.
absl::StatusOr<ReceiptChain> ReadReceipts(
    const std::string& folder,
    const std::function<void(ReceiptChain::Line)>& use);

struct Receipts {
  ReceiptChain chain;
  std::vector<ReceiptChain::Line> lines;
  // Those that were passed over, counted from 1.
  std::vector<int64_t> half_lines;
};
absl::StatusOr<Receipts> ReadReceipts(const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RECEIPT_CHAIN_H_
