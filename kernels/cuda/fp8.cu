// SPDX-License-Identifier: Apache-2.0
//
// Casts to 8 bits. Magnitudes of bfloat16 are compared as integers, above which
// are infinity and NaN, so that what isn't finite reaches the scale.
#include "kernels/cuda/device.h"

namespace capstan::kernels::cuda {
namespace {

constexpr int kV = kVector<BFloat16>;
constexpr int kTurned = 64;  // rows and columns that a block turns at once
constexpr int kTurnedStride = 68;  // bytes: few threads want the same banks
constexpr int kBytesOfStore = 16;  // of a thread
constexpr int kCastBlocks = 1024;  // about one wave

using Values = Pack<BFloat16, kV>;

__device__ __forceinline__ int Magnitude(BFloat16 x) { return x.bits & 0x7fff; }

__device__ __forceinline__ int Greatest(const Values& x) {
  int most = 0;
#pragma unroll
  for (int i = 0; i < kV; ++i) most = Max()(most, Magnitude(x.v[i]));
  return most;
}

// A copy: of a reference nvcc would load each number alone.
__device__ __forceinline__ Values At(const CastFp8Args& a, int64_t row,
                                     int64_t column) {
  return *reinterpret_cast<const Values*>(static_cast<const BFloat16*>(a.x) +
                                          row * a.stride + column);
}

// The scale of numbers whose greatest magnitude has these bits.
__device__ __forceinline__ float ScaleOf(const CastFp8Args& a, int most) {
  const float amax = ToFloat(BFloat16{static_cast<uint16_t>(most)});
  return (amax < a.least_amax ? a.least_amax : amax) / a.most;
}

// The scale of all numbers; every thread of the block must call it.
__device__ __forceinline__ float ScaleOfAll(const CastFp8Args& a) {
  int most = 0;
  for (int i = threadIdx.x; i < a.partials; i += blockDim.x) {
    most = Max()(most, a.partial[i]);
  }
  const float scale = ScaleOf(a, BlockReduce(most, Max()));
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.scale = scale;
  return scale;
}

// Of compute capability 8.9 on, one instruction.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
__device__ __forceinline__ uint16_t CastTwo(bool e5m2, float low, float high) {
  uint16_t two;
  if (e5m2) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
        : "=h"(two)
        : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(two)
        : "f"(high), "f"(low));
  }
  return two;
}
#else
// To nearest, ties to even; beyond the greatest, that; NaN: 0x7f.
__device__ __forceinline__ uint32_t CastOne(bool e5m2, float x) {
  const int mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  const int dropped = 23 - mantissa;
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  const uint32_t sign = bits >> 24 & 0x80;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return 0x7f;
  if (bits < static_cast<uint32_t>(128 - bias) << 23) {
    // A number whose last bit is worth the least subnormal one rounds the sum.
    const uint32_t unit = static_cast<uint32_t>(151 - bias - mantissa) << 23;
    float one, sum;
    memcpy(&one, &unit, sizeof(one));
    memcpy(&sum, &bits, sizeof(sum));
    sum += one;
    memcpy(&bits, &sum, sizeof(bits));
    return sign | (bits - unit);
  }
  bits += (bits >> dropped & 1) + (1u << (dropped - 1)) - 1;
  bits -= static_cast<uint32_t>(127 - bias) << 23;
  const uint32_t most = e5m2 ? 0x7b : 0x7e, made = bits >> dropped;
  return sign | (made < most ? made : most);
}
__device__ __forceinline__ uint16_t CastTwo(bool e5m2, float low, float high) {
  return static_cast<uint16_t>(CastOne(e5m2, high) << 8 | CastOne(e5m2, low));
}
#endif

__device__ __forceinline__ void StoreCast(bool e5m2, const Values& x,
                                          float factor, uint8_t* to) {
  Pack<uint16_t, kV / 2> made;
#pragma unroll
  for (int i = 0; i < kV / 2; ++i) {
    made.v[i] = CastTwo(e5m2, ToFloat(x.v[2 * i]) * factor,
                        ToFloat(x.v[2 * i + 1]) * factor);
  }
  *reinterpret_cast<Pack<uint16_t, kV / 2>*>(to) = made;
}

// A block has the rows from `first` to `last`.
struct RowsOf {
  int64_t first, last;
};
__device__ __forceinline__ RowsOf RowsOfBlock(int64_t rows) {
  return {rows * blockIdx.x / gridDim.x,
          rows * (blockIdx.x + int64_t{1}) / gridDim.x};
}

// The greatest magnitudes of some rows: of all their numbers, or by column.
template <bool kByColumn>
__global__ void __launch_bounds__(kBlockThreads)
    GreatestKernel(const CastFp8Args a) {
  const RowsOf rows = RowsOfBlock(a.rows);
  Pack<int, kV> most = {};
  for (int64_t c = threadIdx.x * kV; c < a.n; c += blockDim.x * kV) {
    for (int64_t row = rows.first; row < rows.last; ++row) {
      const Values x = At(a, row, c);
#pragma unroll
      for (int i = 0; i < kV; ++i) {
        most.v[i] = Max()(most.v[i], Magnitude(x.v[i]));
      }
    }
    if constexpr (kByColumn) {
      *reinterpret_cast<Pack<int, kV>*>(a.partial + blockIdx.x * a.n + c) =
          most;
      most = {};
    }
  }
  if constexpr (!kByColumn) {
    int one = 0;
    for (int i = 0; i < kV; ++i) one = Max()(one, most.v[i]);
    one = BlockReduce(one, Max());
    if (threadIdx.x == 0) a.partial[blockIdx.x] = one;
  }
}

// The scales of columns.
__global__ void __launch_bounds__(kBlockThreads)
    ColumnScalesKernel(const CastFp8Args a) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= a.n) return;
  int most = 0;
  for (int i = 0; i < a.partials; ++i) {
    most = Max()(most, a.partial[i * a.n + c]);
  }
  a.scale[c] = ScaleOf(a, most);
}

template <bool kByRow>
__global__ void __launch_bounds__(kBlockThreads)
    CastRowsKernel(const CastFp8Args a) {
  const RowsOf rows = RowsOfBlock(a.rows);
  float factor = 0.0f;
  if constexpr (!kByRow) factor = 1.0f / ScaleOfAll(a);
  for (int64_t row = rows.first; row < rows.last; ++row) {
    if constexpr (kByRow) {
      int most = 0;
      for (int64_t c = threadIdx.x * kV; c < a.n; c += blockDim.x * kV) {
        most = Max()(most, Greatest(At(a, row, c)));
      }
      const float scale = ScaleOf(a, BlockReduce(most, Max()));
      if (threadIdx.x == 0) a.scale[row] = scale;
      factor = 1.0f / scale;
    }
    for (int64_t c = threadIdx.x * kV; c < a.n; c += blockDim.x * kV) {
      StoreCast(a.e5m2, At(a, row, c), factor, a.out + row * a.width + c);
    }
  }
}

// A thread casts kV columns of two neighbouring rows of a tile, which it lays
// down as pairs; then it takes 16 bytes of a row of the result. A warp has 16
// rows and half of the columns.
template <bool kByRow>
__global__ void __launch_bounds__(kBlockThreads)
    CastTurnedKernel(const CastFp8Args a) {
  __shared__ uint32_t words[kTurned * kTurnedStride / 4];
  uint8_t* const tile = reinterpret_cast<uint8_t*>(words);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int r = (warp / 2 * 8 + lane % 8) * 2;
  const int c = (warp % 2 * 4 + lane / 8) * kV;
  const int row_of_out = threadIdx.x / 4;
  const int part = threadIdx.x % 4 * kBytesOfStore;
  float factor = 0.0f;
  if constexpr (!kByRow) factor = 1.0f / ScaleOfAll(a);
  const int64_t across = (a.n + kTurned - 1) / kTurned;
  const int64_t tiles = across * ((a.width + kTurned - 1) / kTurned);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t top = t / across * kTurned, left = t % across * kTurned;
    if (left + c < a.n) {
      const bool one = top + r < a.rows, two = top + r + 1 < a.rows;
      const Values x = one ? At(a, top + r, left + c) : Values{};
      const Values y = two ? At(a, top + r + 1, left + c) : Values{};
#pragma unroll
      for (int i = 0; i < kV; ++i) {
        if constexpr (kByRow) factor = 1.0f / a.scale[left + c + i];
        *reinterpret_cast<uint16_t*>(tile + (c + i) * kTurnedStride + r) =
            CastTwo(a.e5m2, one ? ToFloat(x.v[i]) * factor : 0.0f,
                    two ? ToFloat(y.v[i]) * factor : 0.0f);
      }
      if constexpr (!kByRow) {
        if (a.also != nullptr) {
          uint8_t* const also = a.also + (top + r) * a.n + left + c;
          if (one) StoreCast(a.e5m2, x, factor, also);
          if (two) StoreCast(a.e5m2, y, factor, also + a.n);
        }
      }
    }
    __syncthreads();
    if (left + row_of_out < a.n && top + part < a.width) {
      Pack<uint32_t, 4> made;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        made.v[i] = *reinterpret_cast<const uint32_t*>(
            tile + row_of_out * kTurnedStride + part + 4 * i);
      }
      StoreWhole(made, a.out + (left + row_of_out) * a.width + top + part);
    }
    __syncthreads();
  }
}

}  // namespace

const char* LaunchCastFp8(const CastFp8Args& a, void* stream) {
  if (a.n % kV != 0 || !Vectors<BFloat16>({a.stride}, {a.x}) ||
      !Vectors<uint8_t>({a.width}, {a.out}, kBytesOfStore)) {
    return "rows aren't of multiples of 16 bytes";
  }
  const int threads = ThreadsFor(a.n / kV);
  if (!a.turned && a.by_row) {
    return Launch(CastRowsKernel<true>, std::min<int64_t>(a.rows, kCastBlocks),
                  threads, 0, a, stream);
  }
  const char* error =
      Launch(a.by_row ? GreatestKernel<true> : GreatestKernel<false>,
             a.partials, threads, 0, a, stream);
  if (error != nullptr) return error;
  if (!a.turned) {
    return Launch(CastRowsKernel<false>, std::min<int64_t>(a.rows, kCastBlocks),
                  threads, 0, a, stream);
  }
  if (a.by_row) {
    error = Launch(ColumnScalesKernel, CeilDiv(a.n, kBlockThreads),
                   kBlockThreads, 0, a, stream);
    if (error != nullptr) return error;
  }
  const int64_t tiles = CeilDiv(a.n, kTurned) * CeilDiv(a.width, kTurned);
  return Launch(a.by_row ? CastTurnedKernel<true> : CastTurnedKernel<false>,
                std::min<int64_t>(tiles, kCastBlocks), kBlockThreads, 0, a,
                stream);
}

}  // namespace capstan::kernels::cuda
