// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/snapshot.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/gpu_tools.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {
namespace {

constexpr int64_t kAlignment = PieceLayout::kAlignment;

at::Tensor At(char* place, const at::Tensor& like) {
  return at::from_blob(place, {like.numel()},
                       at::TensorOptions().dtype(like.scalar_type()));
}

// memcpy to a multiple of 16, past the caches: what is copied is larger than
// they are, and isn't read again soon.
void StreamCopy(char* to, const char* from, int64_t bytes) {
#ifdef __SSE2__
  constexpr int64_t kAtOnce = 64;
  for (; bytes >= kAtOnce; bytes -= kAtOnce, to += kAtOnce, from += kAtOnce) {
    const auto* const source = reinterpret_cast<const __m128i*>(from);
    auto* const target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  // Before anything that is written later, as with usual stores.
  _mm_sfence();
#endif
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

namespace {

// Adds the pieces of `kinds` in a slice, by parameter.
void AddPieces(const CheckpointParts& parts, const OwnedSlice& slice,
               const std::vector<StateKind>& kinds,
               std::vector<StatePiece>* pieces) {
  const std::vector<ParameterRange>& ranges = parts.shards[slice.shard].ranges;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const ParameterRange& range = ranges[i];
    const int64_t low = std::max(slice.begin, range.offset);
    const int64_t high = std::min(slice.end, range.offset + range.length);
    if (low >= high) continue;
    const bool first = range.begin == 0 && low == range.offset;
    for (const StateKind& kind : kinds) {
      // The owner of a parameter's first element writes per-parameter state.
      const StateShape& shape = kind.shape;
      if (shape.per_parameter(range.parameter) && !first) continue;
      const StatePart part =
          StatePartOf(shape, ranges, static_cast<int>(i), low, high);
      if (part.length == 0) continue;
      pieces->push_back(
          {{kind.name(),
            (*parts.specs)[range.parameter].name,
            part.begin,
            part.length,
            {},
            ""},
           kind.tensors[slice.shard].narrow(0, part.offset, part.length)});
    }
  }
}

// The states of plugins that this rank saves.
std::vector<StatePiece> PluginPieces(const CheckpointParts& parts) {
  std::vector<StatePiece> pieces;
  for (const PluginState& plugin : parts.plugins) {
    const int rank = parts.group->rank();
    if (!plugin.of_rank && rank != 0) continue;
    const std::string bytes = plugin.save();
    if (bytes.empty()) continue;
    const auto length = static_cast<int64_t>(bytes.size());
    const at::Tensor elements = at::empty({length}, at::kByte);
    std::memcpy(elements.mutable_data_ptr(), bytes.data(), bytes.size());
    pieces.push_back(
        {{PluginKindOf(plugin, rank), plugin.plugin, 0, length, {}, ""},
         elements});
  }
  return pieces;
}

}  // namespace

at::Device DeviceOf(const std::vector<StatePiece>& pieces) {
  for (const StatePiece& piece : pieces) {
    if (!piece.elements.device().is_cpu()) return piece.elements.device();
  }
  return at::kCPU;
}

std::vector<StatePiece> OwnedPieces(const CheckpointParts& parts) {
  std::vector<StateKind> shared, own;
  for (StateKind& kind : AllKinds(parts)) {
    (kind.of_replica ? own : shared).push_back(std::move(kind));
  }
  std::vector<StatePiece> pieces;
  for (const std::vector<StateKind>& kinds : {shared, own}) {
    if (kinds.empty()) continue;
    for (const OwnedSlice& slice : SlicesOf(kinds[0], parts)) {
      AddPieces(parts, slice, kinds, &pieces);
    }
  }
  for (StatePiece& piece : PluginPieces(parts)) {
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

Manifest ManifestFrame(const TrainState& train_state,
                       const CheckpointParts& parts) {
  Manifest manifest;
  manifest.train_state = train_state;
  manifest.world_size = parts.group->size();
  manifest.config_text = parts.config_text;
  manifest.identity = parts.identity;
  for (const StateKind& kind : AllKinds(parts)) {
    if (kind.name() == kMasterKind) continue;
    ManifestState state = ManifestStateOf(kind, parts);
    const std::string name = WithoutRank(state.name);
    for (int r = 0; kind.of_replica && r < ReplicasOf(parts); ++r) {
      state.name = RankPrefix(r) + name;
      manifest.state.push_back(state);
    }
    if (!kind.of_replica) manifest.state.push_back(std::move(state));
  }
  for (const ParameterSpec& spec : *parts.specs) {
    manifest.parameters.push_back({spec.name, spec.shape, spec.trainable});
  }
  return manifest;
}

PieceLayout::PieceLayout(const std::vector<StatePiece>& pieces) {
  for (const StatePiece& piece : pieces) {
    offsets.push_back(bytes);
    bytes += Taken(static_cast<int64_t>(piece.elements.nbytes()));
  }
}

namespace {

// An offloading strategy's, too.
void CopyHostPieces(const std::vector<StatePiece>& pieces,
                    const PieceLayout& layout, char* to) {
  // A thread's share is a range of the block, in which pieces begin and end.
  constexpr int64_t kGrain = (1 << 20) / kAlignment;
  const auto copy = [&](int64_t begin, int64_t end) {
    const auto after =
        std::upper_bound(layout.offsets.begin(), layout.offsets.end(), begin);
    for (auto i = static_cast<size_t>(after - layout.offsets.begin() - 1);
         i < pieces.size() && layout.offsets[i] < end; ++i) {
      const at::Tensor& elements = pieces[i].elements;
      const int64_t offset = layout.offsets[i];
      const int64_t low = std::max(begin, offset);
      const int64_t high =
          std::min(end, offset + static_cast<int64_t>(elements.nbytes()));
      if (low >= high || !elements.device().is_cpu()) continue;
      StreamCopy(
          to + low,
          static_cast<const char*>(elements.const_data_ptr()) + low - offset,
          high - low);
    }
  };
  at::parallel_for(0, layout.bytes / kAlignment, kGrain,
                   [&](int64_t begin, int64_t end) {
                     copy(begin * kAlignment, end * kAlignment);
                   });
}

}  // namespace

PieceCopies::~PieceCopies() { Settle(); }

void PieceCopies::Start(const std::vector<StatePiece>& pieces,
                        const PieceLayout& layout, char* to) {
  const at::Device device = DeviceOf(pieces);
  BeforeChange();  // of the memory that they may have been going to
  done_.reset();
  if (device.is_cpu()) return CopyHostPieces(pieces, layout, to);
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream copies = guard.getStreamFromGlobalPool(device);
  c10::Event written(device.type());
  written.record(guard.getStream(device));
  written.block(copies);
  try {
    const c10::StreamGuard on_copies(copies);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor& elements = pieces[i].elements;
      if (elements.device().is_cpu()) continue;
      At(to + layout.offsets[i], elements)
          .copy_(elements, /*non_blocking=*/true);
    }
    CopyHostPieces(pieces, layout, to);
  } catch (...) {
    copies.synchronize();  // before the memory may be given up
    throw;
  }
  done_.emplace(device.type());
  done_->record(copies);
  change_waits_ = true;
}

void PieceCopies::BeforeChange() {
  if (!std::exchange(change_waits_, false)) return;
  const at::Device device = done_->device();
  done_->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

bool PieceCopies::done() const { return !done_.has_value() || done_->query(); }

void PieceCopies::Wait() const {
  if (done_.has_value()) done_->synchronize();
}

void PieceCopies::Settle() const {
  CatchAll([this] {
    Wait();
    return absl::OkStatus();
  }).IgnoreError();
}

Snapshot::~Snapshot() {
  copies_.Settle();
  Release();
}

void Snapshot::Release() {
  copied_.clear();
  pinned_.reset();
  if (memory_ != nullptr) munmap(memory_, reserved_);
  memory_ = nullptr;
  reserved_ = 0;
}

absl::Status Snapshot::Reserve(int64_t bytes, const at::Device& device) {
  if (bytes <= reserved_) return absl::OkStatus();
  Release();
  // All pages at once: one by one they take several times as long.
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "no memory for a copy of the state, %d MiB; train { saving: FOREGROUND "
        "} saves without one",
        bytes >> 20));
  }
  memory_ = static_cast<char*>(memory);
  reserved_ = bytes;
  if (!device.is_cuda()) return absl::OkStatus();
  const absl::Status pinned = CatchAll([&] {
    pinned_ = PinMemory(memory_, reserved_);
    return absl::OkStatus();
  });
  if (!pinned.ok()) Release();
  return pinned;
}

absl::Status Snapshot::Take(const std::vector<StatePiece>& pieces) {
  const PieceLayout layout(pieces);
  const at::Device device = DeviceOf(pieces);
  CAPSTAN_RETURN_IF_ERROR(Reserve(layout.bytes, device));
  copied_.clear();
  for (size_t i = 0; i < pieces.size(); ++i) {
    copied_.push_back(
        {pieces[i].range, At(memory_ + layout.offsets[i], pieces[i].elements)});
  }
  return CatchAll([&] {
    copies_.Start(pieces, layout, memory_);
    return absl::OkStatus();
  });
}

const std::vector<StatePiece>& Snapshot::pieces() {
  copies_.Wait();
  return copied_;
}

}  // namespace capstan
