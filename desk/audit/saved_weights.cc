// SPDX-License-Identifier: Apache-2.0
#include "desk/audit/saved_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/session/receipts.h"

namespace capstan {
namespace {

// Without what a resume would do about it.
absl::Status NotWhole(const absl::Status& status) {
  absl::string_view text = status.message();
  const size_t what_to_do = text.find(kWhatToDo);
  if (what_to_do == text.npos) return WithCode(status, "checkpoint/damaged");
  text = text.substr(0, what_to_do);
  return WithCode(absl::DataLossError(absl::StrCat(text, kWhatToDo)),
                  "checkpoint/damaged");
}

// Elements of a tensor that are read at a time, for its dtype.
at::Tensor ChunkOf(c10::ScalarType dtype, int64_t numel) {
  const int64_t most =
      kChunkBytes / static_cast<int64_t>(c10::elementSize(dtype));
  return at::empty({std::min(most, numel)}, dtype);
}

// Adds what is stored of a parameter's masters.
absl::Status AddRange(const ManifestRange& range, StateFile* file,
                      uint64_t* digest) {
  CAPSTAN_RETURN_IF_ERROR(file->Check(range));
  CAPSTAN_ASSIGN_OR_RETURN(const c10::ScalarType dtype,
                           SafetensorsDtype(range.dtype));
  const at::Tensor chunk = ChunkOf(dtype, range.length);
  for (int64_t done = 0; done < range.length; done += chunk.numel()) {
    const at::Tensor part =
        chunk.narrow(0, 0, std::min(chunk.numel(), range.length - done));
    CAPSTAN_RETURN_IF_ERROR(file->Read(range, range.begin + done, part));
    *digest +=
        ReceiptDigest(kMasterKind, range.parameter, range.begin + done, part);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DigestOfCheckpoint(const std::string& folder,
                                               const Manifest& manifest) {
  uint64_t digest = 0;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&]() -> absl::Status {
    for (const ManifestFile& file : manifest.files) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<StateFile> opened,
                               StateFile::Open(folder, file));
      for (const ManifestRange& range : file.ranges) {
        if (range.kind != kMasterKind) continue;
        CAPSTAN_RETURN_IF_ERROR(AddRange(range, opened.get(), &digest));
      }
    }
    return absl::OkStatus();
  }));
  return ReceiptDigestText(digest);
}

// The dtype of the masters as files name it; "": there are none.
std::string DtypeOfMasters(const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    for (const ManifestRange& range : file.ranges) {
      if (range.kind == kMasterKind) return range.dtype;
    }
  }
  return "";
}

uint64_t DigestOfTensor(const std::string& name, const TensorEntry& tensor) {
  uint64_t digest = 0;
  const at::Tensor chunk = ChunkOf(tensor.dtype, tensor.numel);
  const auto size = static_cast<int64_t>(chunk.element_size());
  for (int64_t done = 0; done < tensor.numel; done += chunk.numel()) {
    const at::Tensor part =
        chunk.narrow(0, 0, std::min(chunk.numel(), tensor.numel - done));
    // In the file it may be unaligned.
    std::memcpy(part.mutable_data_ptr(), tensor.data + done * size,
                part.nbytes());
    digest += ReceiptDigest(kMasterKind, name, done, part);
  }
  ForgetMapped(tensor.data, static_cast<size_t>(tensor.bytes));
  return digest;
}

// Of the trained parameters in a final folder; "" if they can't be compared
// with masters, for which `why` is set.
absl::StatusOr<std::string> DigestOfFinal(const std::string& folder,
                                          const Manifest& manifest,
                                          std::string* why) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> weights,
                           SafetensorsReader::Open(WeightsOfFinal(folder)));
  const std::string masters = DtypeOfMasters(manifest);
  uint64_t digest = 0;
  for (const ManifestParameter& parameter : manifest.parameters) {
    if (!parameter.trainable) continue;
    const auto found = weights->tensors().find(parameter.name);
    if (found == weights->tensors().end()) {
      *why = absl::StrCat("has no tensor ", parameter.name);
      return "";
    }
    const std::string dtype = weights->DtypeName(parameter.name);
    if (dtype != masters) {
      *why = absl::StrCat("is stored in ", dtype, ", and trained in ", masters);
      return "";
    }
    digest += DigestOfTensor(parameter.name, found->second);
  }
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  return ReceiptDigestText(digest);
}

// How a checkpoint isn't of the run of the receipts: the first setting that
// differs; "" if it is.
std::string OtherRun(const Manifest& manifest, const Receipts& receipts) {
  std::string difference;
  for (const ReceiptChain::Line& line : receipts.lines) {
    const auto run = line.find("run");
    // Who begins with a checkpoint may go on with other settings.
    if (run == line.end() || !run->is_object() ||
        StepOfReceipt(line) >= manifest.train_state.step) {
      continue;
    }
    difference.clear();
    for (const auto& [name, value] : run->items()) {
      const auto found = manifest.identity.find(name);
      const std::string has =
          found == manifest.identity.end() ? "" : found->second;
      const std::string recorded = ReceiptText(*run, name);
      if (has == recorded) continue;
      difference = absl::StrCat(name, ": ", has.empty() ? "unset" : has,
                                ", and the receipts ", name, ": ", recorded);
      break;
    }
    if (difference.empty()) return "";
  }
  return difference;
}

class WeightsComparison {
 public:
  WeightsComparison(const std::string& folder, const Receipts& receipts)
      : folder_(folder), receipts_(receipts) {}

  SavedWeights Run() {
    const std::vector<StoredCheckpoint> stored = WholeCheckpoints(folder_);
    if (!stored.empty()) saved_.error = CompareCheckpoint(stored.front());
    const std::string final = folder_ + "/final";
    if (saved_.error.ok() && IsFolder(final)) {
      saved_.error = CompareFinal(final);
    }
    return std::move(saved_);
  }

 private:
  absl::Status CompareCheckpoint(const StoredCheckpoint& stored);
  absl::Status CompareFinal(const std::string& final);
  absl::Status Compare(const std::string& name, int64_t step,
                       const std::string& digest,
                       const std::vector<std::string>& recorded);
  absl::Status LeaveOut(const std::string& name, absl::string_view why) {
    saved_.left_out.push_back(absl::StrCat(name, ": ", why));
    return absl::OkStatus();
  }

  const std::string& folder_;
  const Receipts& receipts_;
  absl::optional<Manifest> manifest_;  // the newest checkpoint's
  SavedWeights saved_;
};

absl::Status WeightsComparison::Compare(
    const std::string& name, int64_t step, const std::string& digest,
    const std::vector<std::string>& recorded) {
  if (std::find(recorded.begin(), recorded.end(), digest) != recorded.end()) {
    saved_.same.push_back(name);
    return absl::OkStatus();
  }
  return WithCode(
      absl::DataLossError(absl::StrCat(
          folder_, "/", name,
          " isn't what the receipts have: the digest of its weights is ",
          digest, ", and after step ", step, " they have ", recorded.back(),
          kWhatToDo)),
      "receipts/differs");
}

absl::Status WeightsComparison::CompareCheckpoint(
    const StoredCheckpoint& stored) {
  const std::string name =
      "checkpoints/" + std::filesystem::path(stored.path).filename().string();
  // A run that is going on may have removed it meanwhile.
  const auto not_whole = [&](const absl::Status& status) {
    return IsFolder(stored.path) ? NotWhole(status) : absl::OkStatus();
  };
  absl::StatusOr<Manifest> manifest = ReadManifest(stored.path);
  if (!manifest.ok()) return not_whole(manifest.status());
  const std::string other = OtherRun(*manifest, receipts_);
  if (!other.empty()) {
    return WithCode(absl::DataLossError(absl::StrCat(
                        stored.path, "/", kManifestFile, " has ", other,
                        ": they are of another run; put the run's own ",
                        kReceiptsFile, " in its place")),
                    "receipts/differs");
  }
  const absl::StatusOr<std::string> digest =
      DigestOfCheckpoint(stored.path, *manifest);
  if (!digest.ok()) return not_whole(digest.status());
  manifest_ = *std::move(manifest);
  std::vector<std::string> recorded;
  for (const ReceiptChain::Line& line : receipts_.lines) {
    if (StepOfReceipt(line) == stored.step) {
      recorded.push_back(ReceiptText(line, "weights"));
    }
  }
  if (recorded.empty()) {
    return LeaveOut(name, "the receipts have no line of its step");
  }
  return Compare(name, stored.step, *digest, recorded);
}

absl::Status WeightsComparison::CompareFinal(const std::string& final) {
  const absl::StatusOr<bool> checked = CheckFinalFolder(final);
  if (absl::IsDataLoss(checked.status())) return NotWhole(checked.status());
  const absl::StatusOr<std::string> card = ReadWholeFile(final + "/README.md");
  const CardChain named = ChainOnCard(card.value_or(""));
  if (named.step < 0) {
    return LeaveOut("final", "its model card names no chain");
  }
  std::vector<std::string> recorded;
  for (const ReceiptChain::Line& line : receipts_.lines) {
    if (StepOfReceipt(line) == named.step &&
        ReceiptText(line, "chain") == named.chain) {
      recorded.push_back(ReceiptText(line, "weights"));
    }
  }
  if (recorded.empty()) {
    return WithCode(
        absl::DataLossError(absl::StrCat(
            final, "/README.md names the chain ", named.chain, " after step ",
            named.step, ", which ", kReceiptsFile,
            " doesn't have: one of the two is of another run; put the run's "
            "own in its place")),
        "receipts/differs");
  }
  if (!manifest_.has_value()) {
    return LeaveOut("final",
                    "no checkpoint says which of its tensors were trained");
  }
  std::string why;
  const absl::StatusOr<std::string> digest =
      DigestOfFinal(final, *manifest_, &why);
  if (!digest.ok()) return NotWhole(digest.status());
  if (digest->empty()) return LeaveOut("final", why);
  return Compare("final", named.step, *digest, recorded);
}

}  // namespace

SavedWeights CompareSavedWeights(const std::string& folder,
                                 const Receipts& receipts) {
  return WeightsComparison(folder, receipts).Run();
}

CardChain ChainOnCard(const std::string& card) {
  constexpr absl::string_view kRow = "| receipts' chain | `";
  constexpr absl::string_view kStep = "`, after step ";
  const size_t row = card.find(kRow.data());
  if (row == card.npos) return {};
  absl::string_view rest = absl::string_view(card).substr(row + kRow.size());
  rest = rest.substr(0, rest.find('\n'));
  const size_t step = rest.find(kStep);
  if (step == rest.npos) return {};
  CardChain found;
  found.chain = std::string(rest.substr(0, step));
  rest.remove_prefix(step + kStep.size());
  rest = rest.substr(0, rest.find(' '));
  if (!absl::SimpleAtoi(rest, &found.step)) return {};
  return found;
}

}  // namespace capstan
