// SPDX-License-Identifier: Apache-2.0
//
// train.receipts: the records by which a run's steps can be checked
// (docs/receipts.md).
#ifndef CAPSTAN_TRAINER_SESSION_RECEIPTS_H_
#define CAPSTAN_TRAINER_SESSION_RECEIPTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "plugins/sdk/dataset.h"
#include "trainer/data/data_loader.h"
#include "trainer/metrics/appended_lines.h"
#include "trainer/session/receipt_chain.h"
#include "trainer/session/session.h"
#include "trainer/session/step_in_flight.h"

namespace capstan {

// A sum over the batch's rows, modulo 2^64, of a hash of each row's position in
// the run and of its contents without padding: a step's is the sum of those of
// all its micro-batches, however they are divided.
uint64_t DigestOfRows(const Batch& batch);

// What elements of a parameter's state, which begin at its element `begin`, add
// to a line's digest, modulo 2^64: of kMasterKind to that of the weights.
uint64_t ReceiptDigest(const std::string& kind, const std::string& parameter,
                       int64_t begin, const at::Tensor& elements);
// The digest as a line has it.
std::string ReceiptDigestText(uint64_t digest);

// Writes a run's receipts. Every rank has one; rank 0 writes.
class RunReceipts {
 public:
  // `order`: the training data's.
  RunReceipts(Session* session, const DataOrder& order);

  // Continues the chain of the run's folder, or begins it, with the state that
  // this process begins with. FAILED_PRECONDITION if that isn't the state which
  // the chain has of this step. Collective.
  absl::Status Begin();

  // Digests this rank's state: sets weights (masters) and state (all else that
  // a checkpoint has of the strategy and the optimizer). These and `rows`,
  // which was this rank's, then are of all ranks. Collective.
  absl::Status Digest(StateDigest* digest);

  // Writes the line of a step whose numbers are known. Its error is status().
  void Write(const StepInFlight& step);

  // Writes a line if the weights aren't those of the latest step's line, which
  // must have been written: something else than an update has replaced them,
  // says `why`. Collective.
  absl::Status Replaced(const char* why);

  // Of rank 0's file; the run is to end if it isn't OK.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status BeginChain(const StateDigest& state);
  // How the run is divided, by what and for how long.
  ReceiptChain::Line How() const;
  ReceiptChain::Line Libraries() const;
  absl::Status Append(ReceiptChain::Line line);

  Session& session_;
  SampleSequence samples_;
  ReceiptChain chain_;
  int64_t end_ = 0;  // of the run, as the newest "how" has it
  absl::optional<AppendedLines> file_;  // rank 0's
  absl::Status status_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RECEIPTS_H_
