// SPDX-License-Identifier: Apache-2.0
#include "trainer/optimizer/paged_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/side_stream.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {
namespace {

absl::Status FileError(const std::string& folder, int64_t bytes, int error) {
  const std::string message =
      absl::StrCat("train.offload.optimizer_state: can't keep ", bytes,
                   " bytes of optimizer state in a file in ", folder, " (",
                   strerror(error), LimitText(error),
                   "): free some space there, or choose another output_dir");
  return error == ENOSPC || error == EDQUOT || error == ENOMEM
             ? absl::ResourceExhaustedError(message)
             : absl::FailedPreconditionError(message);
}

// A mapping of a file without a name; its blocks exist, so that no write to it
// can fail later.
absl::StatusOr<void*> MapFile(const std::string& folder, int64_t bytes) {
  std::string path = absl::StrCat(folder, "/.optimizer-state-XXXXXX");
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return FileError(folder, bytes, errno);
  unlink(path.c_str());
  int error = posix_fallocate(fd, 0, bytes);
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  close(fd);
  if (error != 0) return FileError(folder, bytes, error);
  return memory;
}

// The part of a shard that one piece is.
struct Piece {
  int64_t begin = 0, end = 0;  // elements of the shard
  std::vector<ParameterRange> ranges;
  int first_range = 0;  // in the shard, of ranges.front()
};

// Cuts ranges where the optimizer allows it; a piece's first element is a
// range's, so that no block is cut.
std::vector<Piece> PiecesOf(const Optimizer& optimizer, const Model& model,
                            const OptimizerShard& shard, int64_t most,
                            int64_t block) {
  most = std::max(block, most / block * block);
  std::vector<Piece> pieces;
  for (size_t i = 0; i < shard.ranges.size(); ++i) {
    const ParameterRange& range = shard.ranges[i];
    const bool whole = optimizer.NeedsWhole(model, range.parameter);
    for (int64_t done = 0; done < range.length;) {
      const bool joins =
          !pieces.empty() && done == 0 &&
          range.offset + range.length - pieces.back().begin <= most;
      if (!joins) {
        Piece piece;
        piece.begin = range.offset + done;
        piece.first_range = static_cast<int>(i);
        pieces.push_back(std::move(piece));
      }
      Piece& piece = pieces.back();
      const int64_t length = joins || whole
                                 ? range.length - done
                                 : std::min(most, range.length - done);
      piece.ranges.push_back({range.parameter, range.begin + done, length,
                              range.offset + done - piece.begin});
      done += length;
      piece.end = range.offset + done;
    }
  }
  return pieces;
}

// Where a piece's state of a kind is: [begin, begin + length) of the tensor.
std::pair<int64_t, int64_t> StateOf(const StateShape& shape,
                                    const OptimizerShard& shard,
                                    const Piece& piece) {
  const auto part = [&](int index, const ParameterRange& in_piece) {
    const int64_t low = piece.begin + in_piece.offset;
    return StatePartOf(shape, shard.ranges, index, low, low + in_piece.length);
  };
  const int last =
      piece.first_range + static_cast<int>(piece.ranges.size()) - 1;
  const StatePart first_part = part(piece.first_range, piece.ranges.front());
  const StatePart last_part = part(last, piece.ranges.back());
  return {first_part.offset,
          last_part.offset + last_part.length - first_part.offset};
}

OptimizerShard PartOf(const OptimizerShard& shard, const Piece& piece) {
  const auto slice = [&piece](const at::Tensor& t) {
    return t.defined() ? t.narrow(0, piece.begin, piece.end - piece.begin) : t;
  };
  OptimizerShard part;
  part.master = slice(shard.master);
  part.gradient = slice(shard.gradient);
  part.working = slice(shard.working);
  part.ranges = piece.ranges;
  return part;
}

// A piece's state, by kind: where it is kept, and on the device.
struct StatePiece {
  std::vector<at::Tensor> homes;
  std::vector<at::Tensor> copies;
};

void CopyAll(const std::vector<at::Tensor>& from, std::vector<at::Tensor>* to) {
  for (size_t k = 0; k < from.size(); ++k) {
    (*to)[k].copy_(from[k], /*non_blocking=*/true);
  }
}

}  // namespace

absl::StatusOr<at::Tensor> NewPagedState(int64_t length, at::ScalarType dtype,
                                         const at::Device& device,
                                         const std::string& folder) {
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  const int64_t bytes = length * static_cast<int64_t>(c10::elementSize(dtype));
  if (!device.is_cpu()) {
    return at::empty({length}, options.pinned_memory(device.is_cuda())).zero_();
  }
  if (bytes == 0) return at::empty({0}, options);
  const absl::StatusOr<void*> memory = MapFile(folder, bytes);
  if (!memory.ok()) return memory.status();
  return at::from_blob(
      *memory, {length}, [bytes](void* data) { munmap(data, bytes); }, options);
}

void UpdateWhereItIs(Optimizer& optimizer, const OptimizerStep& step,
                     const Model& model, OptimizerShard& shard,
                     absl::Span<at::Tensor> state) {
  const bool apart =
      std::any_of(state.begin(), state.end(), [&shard](const at::Tensor& t) {
        return t.device() != shard.master.device();
      });
  if (!apart) return optimizer.Update(step, model.parameters(), shard, state);
  UpdateInPieces(optimizer, step, model, shard, state, kElementsOfPiece);
}

void UpdateInPieces(Optimizer& optimizer, const OptimizerStep& step,
                    const Model& model, OptimizerShard& shard,
                    absl::Span<at::Tensor> state, int64_t most) {
  const at::NoGradGuard no_grad;
  const std::vector<StateShape> shapes =
      StateShapesOf(optimizer, model.parameters());
  int64_t block = 1;
  for (const StateShape& shape : shapes) {
    block = std::max(block, shape.spec.block);
  }
  const at::Device device = shard.master.device();
  SideStream to_device(device), to_home(device);
  const std::vector<Piece> pieces =
      PiecesOf(optimizer, model, shard, most, block);
  const auto fetch = [&](size_t i) {
    StatePiece fetched;
    if (i >= pieces.size()) return fetched;
    for (size_t k = 0; k < shapes.size(); ++k) {
      const auto [begin, length] = StateOf(shapes[k], shard, pieces[i]);
      fetched.homes.push_back(state[k].narrow(0, begin, length));
      fetched.copies.push_back(at::empty(
          {length}, state[k].options().device(device).pinned_memory(false)));
    }
    to_device.Run([&] { CopyAll(fetched.homes, &fetched.copies); });
    return fetched;
  };
  StatePiece current, next = fetch(0);
  for (size_t i = 0; i < pieces.size(); ++i) {
    // The piece before goes home while this one comes, and is released.
    to_device.Join();
    to_home.Join();
    current = std::move(next);
    next = fetch(i + 1);
    OptimizerShard part = PartOf(shard, pieces[i]);
    optimizer.Update(step, model.parameters(), part,
                     absl::MakeSpan(current.copies));
    to_home.Run([&] { CopyAll(current.copies, &current.homes); });
  }
  to_home.Join();
  // A checkpoint reads the state as any host memory.
  to_home.Wait();
}

}  // namespace capstan
