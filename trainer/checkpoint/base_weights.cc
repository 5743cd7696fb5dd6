// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/base_weights.h"

#include <ATen/Parallel.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;

// Returns the checksums of pieces, computed by several threads, since one
// tensor may be most of a model.
std::vector<uint32_t> Checksums(const std::vector<absl::string_view>& pieces) {
  std::vector<uint32_t> sums(pieces.size());
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       sums[i] = Crc32c(pieces[i]);
                       ForgetMapped(pieces[i].data(), pieces[i].size());
                     }
                   });
  return sums;
}

// Returns what follows " tensors in ".
absl::string_view DtypesIn(absl::string_view digest) {
  constexpr absl::string_view kBefore = " tensors in ";
  const size_t begin = digest.find(kBefore);
  const size_t end = digest.rfind(", ", digest.rfind(", ") - 1);
  if (begin == absl::string_view::npos || end == absl::string_view::npos ||
      end < begin) {
    return "";
  }
  return digest.substr(begin + kBefore.size(), end - begin - kBefore.size());
}

// Of a model trained on a base whose digest is `trained`, with `folder` as its
// base, whose digest is `base`.
absl::Status Compare(const std::string& model, const std::string& trained,
                     const std::string& folder, const std::string& base) {
  if (trained.empty() || trained == base) return absl::OkStatus();
  const bool other_dtype = DtypesIn(trained) != DtypesIn(base);
  return WithCode(
      absl::FailedPreconditionError(absl::StrCat(
          model, " was trained on a base of ", trained, "; ", folder, " has ",
          base,
          other_dtype
              ? ": a base that is stored in another dtype is another base"
              : ": it is another model, or another state of it")),
      "model/other-base");
}

}  // namespace

absl::StatusOr<std::string> DigestOfWeights(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> weights,
                           SafetensorsReader::Open(folder));
  std::vector<absl::string_view> pieces;
  int64_t bytes = 0;
  for (const auto& [name, entry] : weights->tensors()) {
    bytes += entry.bytes;
    for (int64_t at = 0; at < entry.bytes; at += kPieceBytes) {
      pieces.push_back(
          absl::string_view(entry.data, entry.bytes).substr(at, kPieceBytes));
    }
  }
  const std::vector<uint32_t> sums = Checksums(pieces);
  std::string all;
  std::set<std::string> dtypes;
  size_t next = 0;
  for (const auto& [name, entry] : weights->tensors()) {
    const std::string dtype = weights->DtypeName(name);
    dtypes.insert(dtype);
    absl::StrAppend(&all, name, " ", dtype, " ",
                    absl::StrJoin(entry.shape, "x"));
    for (int64_t at = 0; at < entry.bytes; at += kPieceBytes) {
      absl::StrAppend(&all, " ", sums[next++]);
    }
    absl::StrAppend(&all, "\n");
  }
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  return absl::StrFormat("%d tensors in %s, %d bytes, crc32c %08x",
                         weights->tensors().size(), absl::StrJoin(dtypes, "+"),
                         bytes, Crc32c(all));
}

std::string BaseWeightsOf(const std::string& adapter) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(adapter + "/capstan.json");
  if (!text.ok()) return "";
  const auto json = ParseJson<nlohmann::json>(*text);
  if (!json.is_object()) return "";
  const auto found = json.find(kBaseWeightsKey);
  return found != json.end() && found->is_string() ? found->get<std::string>()
                                                   : "";
}

std::string NoteWithoutBase(const std::string& adapter) {
  if (!BaseWeightsOf(adapter).empty()) return "";
  return absl::StrCat(adapter,
                      " doesn't say which weights its base had: they aren't "
                      "compared");
}

absl::Status CompareBaseWeights(const std::string& adapter,
                                const std::string& folder,
                                const std::string& base) {
  return Compare(adapter, BaseWeightsOf(adapter), folder, base);
}

absl::Status CheckBaseWeights(const std::string& adapter,
                              const std::string& folder) {
  return CheckBaseWeights(adapter, BaseWeightsOf(adapter), folder);
}

absl::Status CheckBaseWeights(const std::string& model,
                              const std::string& trained,
                              const std::string& folder) {
  if (trained.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> base = DigestOfWeights(folder);
  absl::Status same = base.status();
  if (same.ok()) same = Compare(model, trained, folder, *base);
  if (same.ok()) return same;
  return WithMessage(
      same,
      absl::StrCat(same.message(),
                   "; take the adapter's own base, or say --other_base to take "
                   "this one all the same"));
}

}  // namespace capstan
