// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/receipts.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/digest.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "base/random.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "host/plugins/plugin_host.h"
#include "trainer/checkpoint/snapshot.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/session/digests.h"
#include "trainer/session/forgotten_rows.h"
#include "trainer/session/schedule.h"

namespace capstan {
namespace {

using Line = ReceiptChain::Line;

std::string Hex(uint64_t number) { return absl::StrFormat("%016x", number); }

std::string Bits(double value) {
  // There are many; ranks may add up to any.
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return Hex(bits);
}

// The elements that a row has before padding, along its first dimension; -1 if
// it has no padding. `tokens`: those of the row.
int64_t WithoutPadding(const at::Tensor& row, const std::string& name,
                       int64_t tokens) {
  if (name == kRowText) {  // zeros are behind it
    const auto* const text = row.const_data_ptr<uint8_t>();
    int64_t bytes = row.numel();
    while (bytes > 0 && text[bytes - 1] == 0) --bytes;
    return bytes;
  }
  const bool padded =
      name == kInputIds || name == kLabels || name == kPositions;
  return padded && tokens >= 0 ? std::min(tokens, row.size(0)) : -1;
}

// By slot, the library of a plugin's object. Its first word is the address of
// its class's table of functions, which lies in the library.
void AddLibrary(const char* slot, const void* object,
                std::map<std::string, std::string>* paths) {
  if (object == nullptr) return;
  Dl_info info;
  if (dladdr(*static_cast<const void* const*>(object), &info) != 0) {
    (*paths)[slot] = info.dli_fname;
  }
}

std::string DigestOfLibrary(const std::string& path) {
  const auto file = MappedFile::Open(path);
  return file.ok() ? Sha256Text((*file)->bytes()) : "";
}

}  // namespace

uint64_t DigestOfRows(const Batch& batch) {
  const at::Tensor positions = HostTensor(batch, kSamplePosition);
  if (!positions.defined() || positions.numel() == 0) return 0;
  const int64_t samples = positions.numel();
  const at::Tensor counts = HostTensor(batch, kTokenCounts);
  uint64_t sum = 0;
  for (const auto& [name, tensor] : batch) {
    const bool copy = absl::EndsWith(name, HostCopyName(""));
    if (copy || name == kSamplePosition || tensor.dim() == 0) continue;
    const at::Tensor rows = HostTensor(batch, name).contiguous();
    for (int64_t r = 0; r < rows.size(0); ++r) {
      at::Tensor row = rows[r];
      const bool counted = counts.defined() && r < counts.numel();
      const int64_t kept =
          WithoutPadding(row, name, counted ? counts[r].item<int64_t>() : -1);
      if (kept >= 0) row = row.narrow(0, 0, kept);
      const auto position =
          static_cast<uint64_t>(positions[r % samples].item<int64_t>());
      // Rows of one sample, such as the texts of a pair, are apart by their
      // place.
      const uint64_t key =
          RandomKey(position, absl::StrCat(name, " ", r / samples));
      const std::array<uint32_t, 4> bits =
          RandomBits(key, DigestOf(row.reshape({-1}), 0),
                     static_cast<uint64_t>(row.numel()));
      sum += uint64_t{bits[0]} << 32 | bits[1];
    }
  }
  return sum;
}

uint64_t ReceiptDigest(const std::string& kind, const std::string& parameter,
                       int64_t begin, const at::Tensor& elements) {
  const uint64_t key = RandomKey(0, absl::StrCat(kind, "/", parameter));
  return DigestOf(elements,
                  static_cast<int64_t>(key + static_cast<uint64_t>(begin)));
}

std::string ReceiptDigestText(uint64_t digest) { return Hex(digest); }

RunReceipts::RunReceipts(Session* session, const DataOrder& order)
    : session_(*session), samples_(order) {}

absl::Status RunReceipts::Digest(StateDigest* digest) {
  ProcessGroup& group = *session_.group;
  std::vector<uint64_t> sums = {digest->rows, 0, 0, 0};
  const absl::Status mine = CatchAll([&] {
    CheckpointParts parts = session_.Checkpointed();
    parts.plugins.clear();  // they differ between ranks
    for (const StatePiece& piece : OwnedPieces(parts)) {
      const ManifestRange& range = piece.range;
      sums[range.kind == kMasterKind ? 1 : 2] += ReceiptDigest(
          range.kind, range.parameter, range.begin, piece.elements);
    }
    return absl::OkStatus();
  });
  sums[3] = mine.ok() ? 0 : 1;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    SumModulo(group, &sums);
    return absl::OkStatus();
  }));
  *digest = {sums[0], sums[1], sums[2]};
  if (sums[3] == 0) return absl::OkStatus();
  return Agree(group, mine, "digest its state for receipts");
}

absl::Status RunReceipts::Replaced(const char* why) {
  StateDigest state;
  CAPSTAN_RETURN_IF_ERROR(Digest(&state));
  if (!file_.has_value()) return absl::OkStatus();
  const int64_t step = session_.state.step;
  const ReceiptChain::Known* const known = chain_.Find(step);
  if (known != nullptr && known->weights == Hex(state.weights)) {
    return absl::OkStatus();
  }
  status_.Update(Append({{"begin", step},
                         {"why", why},
                         {"weights", Hex(state.weights)},
                         {"state", Hex(state.state)}}));
  return absl::OkStatus();
}

absl::Status RunReceipts::Begin() {
  StateDigest state;
  CAPSTAN_RETURN_IF_ERROR(Digest(&state));
  absl::Status mine;
  if (session_.group->rank() == 0) {
    mine = CatchAll([&] { return BeginChain(state); });
  }
  return Agree(*session_.group, mine, "begin its receipts");
}

absl::Status RunReceipts::BeginChain(const StateDigest& state) {
  const std::string path =
      absl::StrCat(session_.output_dir, "/", kReceiptsFile);
  const int64_t step = session_.state.step;
  absl::StatusOr<ReceiptChain> earlier =
      ReadReceipts(session_.output_dir, nullptr);
  if (earlier.ok()) {
    chain_ = *std::move(earlier);
  } else if (!absl::IsNotFound(earlier.status())) {
    return Annotate(earlier.status(),
                    "train.receipts can't go on with this file (move it away "
                    "to begin a new one)");
  }
  const ReceiptChain::Known* const known = chain_.Find(step);
  if (known != nullptr && known->weights != Hex(state.weights)) {
    return WithCode(
        absl::FailedPreconditionError(absl::StrCat(
            path,
            ": the weights with which the run goes on aren't those that it "
            "had after step ",
            step,
            ": the checkpoint has changed since; take an "
            "earlier one, or move the file away to begin a new chain")),
        "receipts/differs");
  }
  if (known == nullptr && !chain_.chain().empty()) {
    session_.Note(absl::StrCat(path, " has no line of step ", step,
                               ", from which the run goes on: a chain of its "
                               "own begins there"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(AppendedLines file, AppendedLines::Open(path));
  file_.emplace(std::move(file));
  Line run = Line::object();
  for (const auto& [name, value] : session_.identity) {
    // Each step has the rate that follows from its length and schedule, and
    // what evaluations read trains nothing. Of forgotten rows the steps say
    // which had them: those before are as without.
    if (name != "train.max_steps" && name != "schedule" &&
        !absl::StartsWith(name, "eval_") && !IsForgottenRow(name)) {
      run[name] = value;
    }
  }
  Line how = How();
  how["libraries"] = Libraries();
  return Append({{"begin", step},
                 {"run", std::move(run)},
                 {"how", std::move(how)},
                 {"weights", Hex(state.weights)},
                 {"state", Hex(state.state)}});
}

Line RunReceipts::How() const {
  const BatchPlan& batch = session_.job.batch;
  return {{"strategy", session_.parts.strategy_name},
          {"precision", session_.parts.precision_name},
          {"world_size", session_.group->size()},
          {"global_batch_size", batch.global_batch_size},
          {"micro_batch_size", batch.micro_batch_size},
          {"schedule_steps",
           TotalSteps(session_.config.schedule(), session_.max_steps)},
          {"deterministic", session_.config.train().deterministic()},
          {"device", session_.group->device().str()},
          {"sdk", SdkVersion(CoreFingerprint())}};
}

Line RunReceipts::Libraries() const {
  const RunParts& parts = session_.parts;
  std::map<std::string, std::string> paths;
  AddLibrary("model", parts.model.get(), &paths);
  AddLibrary("objective", parts.objective.get(), &paths);
  AddLibrary("optimizer", parts.optimizer.get(), &paths);
  AddLibrary("strategy", parts.strategy.get(), &paths);
  AddLibrary("train_data", parts.train_data.get(), &paths);
  Dl_info core;
  if (dladdr(reinterpret_cast<const void*>(&DigestOfRows), &core) != 0) {
    paths["core"] = core.dli_fname;
  }
  Line libraries = Line::object();
  for (const auto& [slot, path] : paths) {
    libraries[slot] = {
        {"file", std::filesystem::path(path).filename().string()},
        {"sha256", DigestOfLibrary(path)}};
  }
  return libraries;
}

void RunReceipts::Write(const StepInFlight& step) {
  if (!file_.has_value() || !status_.ok()) return;
  std::vector<int64_t> samples(session_.job.batch.global_batch_size);
  samples_.At(step.position, absl::MakeSpan(samples));
  const std::string order =
      Sha256Text({reinterpret_cast<const char*>(samples.data()),
                  samples.size() * sizeof(samples[0])});
  const StepSums& sums = step.sums;
  const double loss = sums.count > 0 ? sums.loss_sum / sums.count : 0.0;
  Line line = {{"step", step.number},
               {"samples", order.substr(0, 16)},
               {"rows", Hex(step.digest.rows)},
               {"loss", Bits(loss)},
               {"grad_norm", Bits(step.outcome.grad_norm)},
               {"lr", Bits(step.outcome.skipped ? 0.0 : step.lr)},
               {"weights", Hex(step.digest.weights)},
               {"state", Hex(step.digest.state)}};
  if (!step.forgotten.empty()) {
    line["forgotten"] = absl::StrJoin(step.forgotten, " ");
  }
  // The next step's rate is that of a run of another length.
  if (session_.max_steps != end_) line["how"] = How();
  status_ = CatchAll([&] { return Append(std::move(line)); });
}

absl::Status RunReceipts::Append(Line line) {
  if (line.contains("how")) end_ = session_.max_steps;
  const int64_t step = StepOfReceipt(line);
  CAPSTAN_RETURN_IF_ERROR(chain_.Add(&line));
  chain_.ForgetBefore(step);
  return file_->Add(JsonText(line));
}

}  // namespace capstan
