// SPDX-License-Identifier: Apache-2.0
//
// The lines of OUTPUT_DIR/receipts.jsonl (docs/receipts.md): their hashes, and
// how they are checked.
#ifndef CAPSTAN_TRAINER_SESSION_RECEIPT_CHAIN_H_
#define CAPSTAN_TRAINER_SESSION_RECEIPT_CHAIN_H_

#include <cstdint>
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
//     A process of the run has begun after that step. "run" is what identifies
//     what is trained (run_identity.h); "how" is what mustn't matter for it:
//     strategy, ranks, libraries.
//   {"step": 1, "samples": .., "rows": .., "loss": .., .., "state": ..}
//
// "chain" is the SHA-256 digest of the step before it and of this line's step,
// or of its run. It says what was trained: two runs that trained the same have
// the same, whatever their "how", and however often they were resumed. "seal"
// is that of the line before it and of all of this line: it says that the file
// is as it was written.
class ReceiptChain {
 public:
  using Line = nlohmann::ordered_json;

  // Adds both keys, and takes the line into the chain. FAILED_PRECONDITION if
  // the line is of a step whose predecessor the chain doesn't have.
  absl::Status Add(Line* line);

  // Takes a line that has both. DATA_LOSS says what doesn't hold.
  absl::Status Check(const Line& line);

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

// The chain of a run's folder with its lines in order, all of them checked. An
// incomplete line, which a killed run leaves, is passed over. NOT_FOUND:
// the folder has none. DATA_LOSS names the file, the line, its step and what
// doesn't hold.
struct Receipts {
  ReceiptChain chain;
  std::vector<ReceiptChain::Line> lines;
};
absl::StatusOr<Receipts> ReadReceipts(const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RECEIPT_CHAIN_H_
