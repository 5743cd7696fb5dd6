// SPDX-License-Identifier: Apache-2.0
//
// What the kernels use of CUDA, and share: 16-bit types, vector loads, block
// reductions, launching. On a host, testing/cuda/emulator.h replaces nvcc's
// part; its user includes it first.
#ifndef CAPSTAN_KERNELS_CUDA_DEVICE_H_
#define CAPSTAN_KERNELS_CUDA_DEVICE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/cuda/cuda_kernels.h"

namespace capstan::kernels::cuda {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

__device__ __forceinline__ float ToFloat(float x) { return x; }

// Round to nearest even, as cuda_bf16.h and cuda_fp16.h do in thousands of
// lines.
#ifdef __CUDACC__
__device__ __forceinline__ float ToFloat(BFloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ float ToFloat(Float16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ void FromFloat(float x, BFloat16& y) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}
__device__ __forceinline__ void FromFloat(float x, Float16& y) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}
#else
inline float ToFloat(BFloat16 x) { return emulator::FromBFloat16(x.bits); }
inline float ToFloat(Float16 x) { return emulator::FromFloat16(x.bits); }
inline void FromFloat(float x, BFloat16& y) {
  y.bits = emulator::ToBFloat16(x);
}
inline void FromFloat(float x, Float16& y) { y.bits = emulator::ToFloat16(x); }
#endif
__device__ __forceinline__ void FromFloat(float x, float& y) { y = x; }

// x rounded to T.
template <typename T>
__device__ __forceinline__ float Rounded(float x) {
  T y;
  FromFloat(x, y);
  return ToFloat(y);
}

// Elements of one 16-byte load or store.
template <typename T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

template <typename T, int V>
struct alignas(sizeof(T) * V) Pack {
  T v[V];
};

template <int V, typename T>
__device__ __forceinline__ void Load(const T* p, float (&x)[V]) {
  const Pack<T, V> pack = *reinterpret_cast<const Pack<T, V>*>(p);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = ToFloat(pack.v[i]);
}

template <typename T, int V>
__device__ __forceinline__ void StoreWhole(const Pack<T, V>& pack, void* p) {
#ifdef __CUDACC__
  // nvcc may split an assignment, also of uint4, into as many stores.
  if constexpr (sizeof(pack) % sizeof(uint4) == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(pack) / sizeof(uint4)); ++i) {
      __stwb(reinterpret_cast<uint4*>(p) + i,
             reinterpret_cast<const uint4*>(&pack)[i]);
    }
    return;
  }
#endif
  *reinterpret_cast<Pack<T, V>*>(p) = pack;
}

template <int V, typename T>
__device__ __forceinline__ void Store(const float (&x)[V], T* p) {
  Pack<T, V> pack;
#pragma unroll
  for (int i = 0; i < V; ++i) FromFloat(x[i], pack.v[i]);
  StoreWhole(pack, p);
}

struct Add {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const {
    return fmaxf(a, b);
  }
  __device__ __forceinline__ int operator()(int a, int b) const {
    return a > b ? a : b;
  }
};

// Combines `x` of the warp's threads; all must call it, and all get the result.
template <typename T, typename Combine>
__device__ __forceinline__ T WarpReduce(T x, Combine combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    x = combine(x, __shfl_xor_sync(0xffffffffu, x, step));
  }
  return x;
}

// Combines `x` of all threads of the block (a multiple of 32, at most 1024) in
// a fixed order; all threads must call it, and all get the result.
template <typename T, typename Combine>
__device__ __forceinline__ T BlockReduce(T x, Combine combine) {
  __shared__ T warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x = WarpReduce(x, combine);
  if (lane == 0) warps[warp] = x;
  __syncthreads();
  x = warps[0];
  for (int w = 1; w < blockDim.x / 32; ++w) x = combine(x, warps[w]);
  __syncthreads();  // for the next call
  return x;
}

// The launch's `shared` bytes of dynamic shared memory.
#ifdef __CUDACC__
__device__ __forceinline__ float* SharedFloats() {
  extern __shared__ __align__(16) float capstan_shared_floats[];
  return capstan_shared_floats;
}
#else
inline float* SharedFloats() { return emulator::SharedFloats(); }
#endif

// Host code.

// Runs kernel(args) on `blocks` blocks of `threads` threads. Returns null, or
// CUDA's error message.
template <typename Args>
const char* Launch(void (*kernel)(Args), int64_t blocks, int threads,
                   size_t shared, const Args& args, void* stream) {
  if (blocks == 0) return nullptr;
  if (blocks > INT32_MAX) return "too many rows for one launch";
#ifdef __CUDACC__
  kernel<<<static_cast<unsigned>(blocks), threads, shared,
           static_cast<cudaStream_t>(stream)>>>(args);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
#else
  emulator::Run(static_cast<int>(blocks), threads, shared,
                [&] { kernel(args); });
  return nullptr;
#endif
}

// Calls f(T()) for the type of dtype.
template <typename F>
const char* ByType(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float());
    case DType::kBFloat16:
      return f(BFloat16());
    case DType::kFloat16:
      return f(Float16());
    default:
      return "the dtype is none of float32, bfloat16 and float16";
  }
}

// Whether rows at these pointers (except nulls), whose lengths and strides are
// multiples of `width`, can be accessed as Packs of V elements of T.
template <typename T>
bool Vectors(std::initializer_list<int64_t> widths,
             std::initializer_list<const void*> pointers, int v = kVector<T>) {
  for (int64_t width : widths) {
    if (width % v != 0) return false;
  }
  for (const void* p : pointers) {
    if (reinterpret_cast<uintptr_t>(p) % (v * sizeof(T)) != 0) return false;
  }
  return true;
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The default block size.
constexpr int kBlockThreads = 256;

// Threads for `items` independent items per row: whole warps.
inline int ThreadsFor(int64_t items) {
  if (items >= kBlockThreads) return kBlockThreads;
  return items <= 32 ? 32 : static_cast<int>(CeilDiv(items, 32) * 32);
}

// Runs the kernel on `rows` rows of n elements, v a thread.
template <typename Args>
const char* LaunchRows(void (*kernel)(Args), int64_t rows, const Args& a, int v,
                       void* stream) {
  const int threads = ThreadsFor(CeilDiv(a.n, v));
  return Launch(kernel, rows * CeilDiv(a.n, int64_t{threads} * v), threads, 0,
                a, stream);
}

// The row of the thread's V elements, and the column of the first; LaunchRows
// divides each row among whole blocks.
struct Place {
  int64_t row, column;
};
template <int V>
__device__ __forceinline__ Place PlaceIn(int64_t rows, int64_t n) {
  const int chunk = static_cast<int>(blockDim.x) * V;
  const int64_t in_chunk = static_cast<int64_t>(threadIdx.x) * V;
  if (rows == 1)
    return {0, static_cast<int64_t>(blockIdx.x) * chunk + in_chunk};
  // In 32 bits: a 64-bit division takes as long as everything else.
  const uint32_t block = blockIdx.x;
  const auto chunks = static_cast<uint32_t>((n + chunk - 1) / chunk);
  const uint32_t row = block / chunks;
  return {row, static_cast<int64_t>(block - row * chunks) * chunk + in_chunk};
}

}  // namespace capstan::kernels::cuda

#endif  // CAPSTAN_KERNELS_CUDA_DEVICE_H_
