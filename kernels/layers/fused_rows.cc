// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/fused_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "base/profile.h"
#include "base/simd/simd.h"

namespace capstan::kernels {
namespace {

template <typename Body>
void ForRows(int64_t rows, int64_t width, const Body& body) {
  // One token's rows: without asking for threads.
  if (rows <= RowGrain(width)) return body(0, rows);
  at::parallel_for(0, rows, RowGrain(width), body);
}

// Calls body with the factor of a norm of T in memory and the loop that takes
// it: it is float32 (`wide`), or of T.
template <typename T, typename Loop, typename WideLoop, typename Body>
void WithFactor(const at::Tensor& factor, Loop loop, WideLoop wide,
                const Body& body) {
  const at::ScalarType type = factor.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == StorageType<T>(),
              "a norm's weight is ", type, " for rows of ", StorageType<T>());
  if (type == at::kFloat) {
    body(wide, ReadAs<float>(factor));
  } else {
    body(loop, ReadAs<T>(factor));
  }
}

}  // namespace

template <typename T>
void Normalise(const T* x, int64_t rows, const at::Tensor& factor, double eps,
               T* y, float* rstd) {
  const ProfileScope profile("rms_norm");
  const RowKernels<T>& loops = Simd().rows<T>();
  const int64_t width = factor.size(0);
  WithFactor<T>(factor, loops.rms_norm, loops.rms_norm_wide,
                [&](auto loop, const auto* values) {
                  ForRows(rows, width, [&](int64_t begin, int64_t end) {
                    loop(x + begin * width, values, static_cast<float>(eps),
                         end - begin, width, y + begin * width, rstd + begin);
                  });
                });
}

template <typename T>
void NormaliseAgain(const T* x, int64_t rows, const at::Tensor& factor,
                    const float* rstd, T* y) {
  const ProfileScope profile("rms_norm");
  const RowKernels<T>& loops = Simd().rows<T>();
  const int64_t width = factor.size(0);
  WithFactor<T>(factor, loops.rms_norm_again, loops.rms_norm_again_wide,
                [&](auto loop, const auto* values) {
                  ForRows(rows, width, [&](int64_t begin, int64_t end) {
                    loop(x + begin * width, values, rstd + begin, end - begin,
                         width, y + begin * width);
                  });
                });
}

template <typename T>
void NormaliseBackward(const NormGradientBuffers<T>& p, int64_t rows,
                       const at::Tensor& factor,
                       const at::Tensor& weight_gradient, bool same_bits) {
  const ProfileScope profile("rms_norm");
  const RowKernels<T>& loops = Simd().rows<T>();
  const int64_t width = factor.size(0);
  // One sum per chunk of rows, so that threads don't share one.
  const int64_t pieces = std::max<int64_t>(
      1, std::min<int64_t>(at::get_num_threads(), rows / RowGrain(width)));
  const bool wanted = weight_gradient.defined();
  // Then threads divide the columns of the weight's gradient, in another pass,
  // so that its sums don't depend on their number.
  const bool apart = pieces > 1 && same_bits;
  at::Tensor sums;
  if (wanted) {
    sums = pieces == 1 || apart
               ? weight_gradient
               : at::empty({pieces * width}, weight_gradient.options());
    sums.zero_();
  }
  float* const sum = wanted ? Data(sums) : nullptr;
  if (wanted && apart) {              // before dx, which may be dy
    constexpr int64_t kColumns = 64;  // by cache lines
    const int64_t strips = (width + kColumns - 1) / kColumns;
    at::parallel_for(
        0, strips, RowGrain(rows * kColumns), [&](int64_t first, int64_t last) {
          const int64_t begin = first * kColumns;
          const int64_t end = std::min(width, last * kColumns);
          loops.rms_norm_weight_gradient(p.dy + begin, p.x + begin, p.rstd,
                                         rows, width, end - begin, sum + begin);
        });
  }
  const auto run = [&](auto loop, const auto* values) {
    at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
      for (int64_t piece = first; piece < last; ++piece) {
        const int64_t begin = rows * piece / pieces;
        const int64_t count = rows * (piece + 1) / pieces - begin;
        const int64_t at = begin * width;
        loop(p.dy + at, p.x + at, values, p.rstd + begin,
             p.residual == nullptr ? nullptr : p.residual + at, count, width,
             p.dx + at, wanted && !apart ? sum + piece * width : nullptr);
      }
    });
  };
  WithFactor<T>(factor, loops.rms_norm_backward, loops.rms_norm_backward_wide,
                run);
  if (wanted && pieces > 1 && !apart) {
    at::sum_out(const_cast<at::Tensor&>(weight_gradient),
                sums.view({pieces, width}), {0});
  }
}

template <typename T>
void AddRows(const T* a, const T* b, int64_t n, T* out) {
  at::Tensor sum = ViewOf(out, 1, n);
  at::add_out(sum, ViewOf(a, 1, n), ViewOf(b, 1, n));
}

template <typename T>
void Gate(Activation activation, const T* gate, const T* up, int64_t n,
          T* out) {
  const ProfileScope profile("swiglu");
  const auto loop = activation == Activation::kSilu ? Simd().rows<T>().swiglu
                                                    : Simd().rows<T>().geglu;
  ForRows(n, 1, [&](int64_t i, int64_t end) {
    loop(gate + i, up + i, end - i, out + i);
  });
}

template <typename T>
void GateBackward(Activation activation, const T* gate, const T* up, int64_t n,
                  T* d_out, T* d_gate, T* d_up) {
  const ProfileScope profile("swiglu");
  const auto loop = activation == Activation::kSilu
                        ? Simd().rows<T>().swiglu_backward
                        : Simd().rows<T>().geglu_backward;
  ForRows(n, 1, [&](int64_t i, int64_t end) {
    loop(gate + i, up + i, end - i, d_out + i, d_gate + i, d_up + i);
  });
}

#define CAPSTAN_FUSED_ROWS_OF(T)                                               \
  template void Normalise<T>(const T*, int64_t, const at::Tensor&, double, T*, \
                             float*);                                          \
  template void NormaliseAgain<T>(const T*, int64_t, const at::Tensor&,        \
                                  const float*, T*);                           \
  template void NormaliseBackward<T>(const NormGradientBuffers<T>&, int64_t,   \
                                     const at::Tensor&, const at::Tensor&,     \
                                     bool);                                    \
  template void AddRows<T>(const T*, const T*, int64_t, T*);                   \
  template void Gate<T>(Activation, const T*, const T*, int64_t, T*);          \
  template void GateBackward<T>(Activation, const T*, const T*, int64_t, T*,   \
                                T*, T*)
CAPSTAN_FUSED_ROWS_OF(float);
CAPSTAN_FUSED_ROWS_OF(Bf16);
CAPSTAN_FUSED_ROWS_OF(Fp16);
#undef CAPSTAN_FUSED_ROWS_OF

}  // namespace capstan::kernels
