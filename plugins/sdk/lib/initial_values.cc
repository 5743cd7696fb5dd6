// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/initial_values.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/progress.h"
#include "base/status.h"
#include "kernels/context/on_paper.h"

namespace capstan {
namespace {

// The least work of a thread, and what fits a cache as floats.
constexpr int64_t kPiece = 1 << 16;

// Calls `piece` for parts of [0, n), in parallel: what they write depends on
// its position alone.
absl::Status ForEachPiece(
    int64_t n,
    const std::function<absl::Status(int64_t begin, int64_t count)>& piece) {
  absl::Status status;
  std::mutex mutex;
  at::parallel_for(0, n, kPiece, [&](int64_t begin, int64_t end) {
    absl::Status done = piece(begin, end - begin);
    if (done.ok()) return;
    std::lock_guard<std::mutex> lock(mutex);
    status = std::move(done);
  });
  return status;
}

// The bytes of a packed parameter's range, which are elements of `slice`.
absl::Status FillPacked(const Model& model, int64_t bytes,
                        const ParameterRange& range, const at::Tensor& slice) {
  const int64_t begin = range.begin * slice.element_size();
  // The last element may be longer.
  const int64_t count = std::min<int64_t>(slice.nbytes(), bytes - begin);
  const at::Tensor place = slice.view(at::kByte).narrow(0, 0, count);
  const at::Tensor host =
      slice.is_cpu() ? place : at::empty({count}, at::kByte);
  uint8_t* const out = host.mutable_data_ptr<uint8_t>();
  CAPSTAN_RETURN_IF_ERROR(ForEachPiece(count, [&](int64_t from, int64_t n) {
    return model.PackedValue(range.parameter, begin + from, n, out + from);
  }));
  if (!slice.is_cpu()) place.copy_(host);
  return absl::OkStatus();
}

// Model::InitialValue of `count` values from the range's `begin`th on; an error
// names the parameter.
absl::Status ReadInitialValues(const Model& model, uint64_t seed,
                               const ParameterRange& range, int64_t begin,
                               int64_t count, float* out) {
  return Annotate(model.InitialValue(range.parameter, seed, range.begin + begin,
                                     count, out),
                  absl::StrCat("initial values of '",
                               model.parameters()[range.parameter].name, "'"));
}

// A parameter's values in another dtype than float32, on a CPU: converted in
// pieces that fit a cache, not by way of a whole tensor of floats.
absl::Status FillConverted(const Model& model, uint64_t seed,
                           const ParameterRange& range,
                           const at::Tensor& slice) {
  return ForEachPiece(range.length, [&](int64_t begin, int64_t count) {
    const at::NoGradGuard no_grad;  // on each thread
    const at::Tensor piece = at::empty({std::min(count, kPiece)}, at::kFloat);
    float* const values = piece.mutable_data_ptr<float>();
    for (const int64_t end = begin + count; begin < end; begin += kPiece) {
      const int64_t n = std::min(end - begin, kPiece);
      CAPSTAN_RETURN_IF_ERROR(
          ReadInitialValues(model, seed, range, begin, n, values));
      slice.narrow(0, begin, n).copy_(piece.narrow(0, 0, n));
    }
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status FillInitialValues(const Model& model, uint64_t seed,
                               const std::vector<ParameterRange>& ranges,
                               const at::Tensor& flat) {
  if (OnPaper()) return absl::OkStatus();
  at::NoGradGuard no_grad;
  for (const ParameterRange& range : ranges) {
    const at::Tensor slice = flat.narrow(0, range.offset, range.length);
    const int64_t bytes = model.PackedBytes(range.parameter);
    if (bytes > 0) {
      CAPSTAN_RETURN_IF_ERROR(FillPacked(model, bytes, range, slice));
      CountProgress();
      continue;
    }
    if (slice.is_cpu() && slice.scalar_type() != at::kFloat) {
      CAPSTAN_RETURN_IF_ERROR(FillConverted(model, seed, range, slice));
      CountProgress();
      continue;
    }
    const at::Tensor host =
        slice.is_cpu() ? slice : at::empty({range.length}, at::kFloat);
    float* out = host.mutable_data_ptr<float>();
    CAPSTAN_RETURN_IF_ERROR(ForEachPiece(range.length, [&](int64_t begin,
                                                           int64_t count) {
      return ReadInitialValues(model, seed, range, begin, count, out + begin);
    }));
    if (!host.is_same(slice)) slice.copy_(host);
    CountProgress();
  }
  return absl::OkStatus();
}

}  // namespace capstan
