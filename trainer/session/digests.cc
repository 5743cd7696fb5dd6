// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/digests.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/simd/instruction_set.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "trainer/checkpoint/snapshot.h"
#include "trainer/checkpoint/state_kinds.h"

namespace capstan {
namespace {

constexpr char kGradientKind[] = "gradient";
constexpr char kWeightKind[] = "weight";
constexpr int64_t kGrain = 1 << 15;

// Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
// OOPSLA 2014: SplitMix64's mixing function.
inline uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The key of an element is that of its index in a block of so many, times the
// block's; both are odd.
constexpr uint64_t kKeys = 1024;

const std::array<uint64_t, kKeys>& Keys() {
  static const auto keys = [] {
    std::array<uint64_t, kKeys> all;
    for (uint64_t i = 0; i < kKeys; ++i) {
      all[i] = Mix((i + 1) * 0x9E3779B97F4A7C15u) | 1;
    }
    return all;
  }();
  return keys;
}

// Adds up in as many lanes as several vector registers have: modulo 2^64 the
// order doesn't matter.
template <typename Bits>
__attribute__((always_inline)) inline void AddProducts(const Bits* bits,
                                                       const uint64_t* keys,
                                                       int64_t count,
                                                       uint64_t* sum) {
  constexpr int kLanes = 32;
  uint64_t sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] += keys[i + lane] * bits[i + lane];
    }
  }
  for (; i < count; ++i) sums[i % kLanes] += keys[i] * bits[i];
  for (const uint64_t one : sums) *sum += one;
}

template <typename Bits>
uint64_t Digest(const void* data, int64_t begin, int64_t end, int64_t first) {
  static const auto add_products = BestOf<&AddProducts<Bits>>();
  const auto* const bits = static_cast<const Bits*>(data);
  uint64_t sum = 0;
  for (int64_t i = begin, count; i < end; i += count) {
    const uint64_t index = static_cast<uint64_t>(first) + i;
    const uint64_t place = index % kKeys;
    count = std::min(end - i, static_cast<int64_t>(kKeys - place));
    uint64_t products = 0;
    add_products(bits + i, Keys().data() + place, count, &products);
    sum += (Mix(index / kKeys) | 1) * products;
  }
  return sum;
}

// Cuts a file of lines after the last that is whole. OK without the file.
absl::Status CutTornLine(const std::string& path) {
  constexpr int64_t kChunk = 1 << 16;
  if (!PathExists(path)) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t bytes, file->Bytes());
  int64_t whole = bytes;
  while (whole > 0) {
    std::string chunk(std::min(kChunk, whole), '\0');
    whole -= static_cast<int64_t>(chunk.size());
    CAPSTAN_RETURN_IF_ERROR(
        file->ReadAt(whole, static_cast<int64_t>(chunk.size()), &chunk[0]));
    const size_t newline = chunk.rfind('\n');
    if (newline == std::string::npos) continue;
    whole += static_cast<int64_t>(newline) + 1;
    break;
  }
  if (whole == bytes) return absl::OkStatus();
  std::error_code error;
  std::filesystem::resize_file(path, static_cast<uintmax_t>(whole), error);
  return error ? WriteError(path, error.value()) : absl::OkStatus();
}

std::string NameOf(const std::string& kind) {
  return kind == kMasterKind ? kWeightKind : kind;
}

}  // namespace

void SumModulo(ProcessGroup& group, std::vector<uint64_t>* sums) {
  const std::vector<uint64_t> all = AllGatherHost(group, *sums);
  std::fill(sums->begin(), sums->end(), 0);
  for (size_t i = 0; i < all.size(); ++i) (*sums)[i % sums->size()] += all[i];
}

uint64_t DigestOf(const at::Tensor& elements, int64_t first) {
  const at::Tensor host = elements.cpu().contiguous();
  const void* const data = host.const_data_ptr();
  std::atomic<uint64_t> sum{0};
  at::parallel_for(0, host.numel(), kGrain, [&](int64_t begin, int64_t end) {
    switch (host.element_size()) {
      case 1:
        sum += Digest<uint8_t>(data, begin, end, first);
        break;
      case 2:
        sum += Digest<uint16_t>(data, begin, end, first);
        break;
      case 4:
        sum += Digest<uint32_t>(data, begin, end, first);
        break;
      default:
        sum += Digest<uint64_t>(data, begin, end, first);
    }
  });
  return sum;
}

RunDigests::RunDigests(const Digests& config, const std::string& output_dir,
                       std::function<CheckpointParts()> parts)
    : config_(config),
      output_dir_(output_dir),
      parts_(std::move(parts)),
      specs_(*parts_().specs),
      group_(*parts_().group) {
  for (const ParameterSpec& spec : specs_) {
    if (spec.trainable) index_.emplace(spec.name, index_.size());
  }
  const CheckpointParts all = parts_();
  for (const StateKind& kind : AllKinds(all)) {
    const std::string name = NameOf(WithoutRank(kind.name()));
    for (int r = 0; kind.of_replica && r < ReplicasOf(all); ++r) {
      kinds_.push_back(RankPrefix(r) + name);
    }
    if (!kind.of_replica) kinds_.push_back(name);
  }
  kinds_.push_back(kGradientKind);
}

absl::Status RunDigests::Begin(int64_t step) {
  if (group_.rank() == 0) status_ = CatchAll([this] { return OpenFile(); });
  return Write(step);
}

absl::Status RunDigests::OpenFile() {
  const std::string path = output_dir_ + "/digests.jsonl";
  CAPSTAN_RETURN_IF_ERROR(CutTornLine(path));
  CAPSTAN_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Open(path, OutputFile::Start::kAtEnd));
  file_.emplace(std::move(file));
  return absl::OkStatus();
}

void RunDigests::Gradients(int64_t step) {
  gradients_ = true;
  status_ = CatchAll([&] {
    CheckpointParts parts = Tensors();
    std::vector<OptimizerShard> gradients;
    for (const OptimizerShard& shard : parts.shards) {
      gradients.push_back({shard});
      gradients.back().master = shard.gradient;
    }
    parts.shards = absl::MakeSpan(gradients);
    parts.state_shapes.clear();
    // Replicas' own gradients are all there is of them.
    if (LocalSteps(parts)) parts.owned = ReplicaSlices(parts);
    parts.strategy = nullptr;
    return Add(parts, step, /*gradients=*/true);
  });
}

CheckpointParts RunDigests::Tensors() const {
  CheckpointParts parts = parts_();
  parts.plugins.clear();
  return parts;
}

absl::Status RunDigests::Add(const CheckpointParts& parts, int64_t step,
                             bool gradients) {
  for (const StatePiece& piece : OwnedPieces(parts)) {
    const std::string kind =
        gradients ? kinds_.back() : NameOf(piece.range.kind);
    Sums& sums = sums_[kind];
    sums.resize(index_.size());
    sums[index_.at(piece.range.parameter)] +=
        DigestOf(piece.elements, piece.range.begin);
    CAPSTAN_RETURN_IF_ERROR(Keep(kind, piece.range.parameter, step,
                                 piece.range.begin, piece.elements));
  }
  return absl::OkStatus();
}

absl::Status RunDigests::Keep(const std::string& kind,
                              const std::string& parameter, int64_t step,
                              int64_t begin, const at::Tensor& elements) {
  const auto& keep = config_.keep();
  const std::string name = absl::StrCat(kind, "/", parameter);
  if (step != config_.keep_step() ||
      std::find(keep.begin(), keep.end(), name) == keep.end()) {
    return absl::OkStatus();
  }
  const std::string folder = absl::StrCat(output_dir_, "/digests");
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder));
  const at::Tensor host = elements.cpu().contiguous();
  return ReplaceFile(
      absl::StrCat(folder, "/", step, ".", kind, ".", parameter, ".", begin,
                   ".", c10::toString(host.scalar_type())),
      absl::string_view(static_cast<const char*>(host.const_data_ptr()),
                        host.nbytes()));
}

absl::Status RunDigests::Write(int64_t step) {
  absl::Status mine = std::exchange(status_, absl::OkStatus());
  mine.Update(
      CatchAll([&] { return Add(Tensors(), step, /*gradients=*/false); }));
  std::vector<std::string> kinds = kinds_;
  // Of what there isn't, zeros would be taken for a run's.
  if (!std::exchange(gradients_, false)) kinds.pop_back();
  std::vector<uint64_t> all;
  for (const std::string& kind : kinds) {
    Sums& sums = sums_[kind];
    sums.resize(index_.size());
    all.insert(all.end(), sums.begin(), sums.end());
  }
  sums_.clear();
  all.push_back(mine.ok() ? 0 : 1);  // how many ranks failed
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    SumModulo(group_, &all);
    return absl::OkStatus();
  }));
  if (group_.rank() == 0 && all.back() == 0) {
    mine = CatchAll([&] { return WriteLine(step, kinds, all); });
  }
  return Agree(group_, mine, "write digests");
}

absl::Status RunDigests::WriteLine(int64_t step,
                                   const std::vector<std::string>& kinds,
                                   const std::vector<uint64_t>& sums) {
  nlohmann::ordered_json line;
  line["step"] = step;
  auto sum = sums.begin();
  for (const std::string& kind : kinds) {
    nlohmann::ordered_json& of_kind = line[kind];
    for (const ParameterSpec& spec : specs_) {
      if (!spec.trainable) continue;
      of_kind[spec.name] = absl::StrFormat("%016x", *sum++);
    }
  }
  return file_->Append(line.dump() + "\n");
}

}  // namespace capstan
