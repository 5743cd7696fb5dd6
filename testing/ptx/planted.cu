// SPDX-License-Identifier: Apache-2.0
//
// Kernels with a mistake each, and twins without it, for planted_test.cc. Each
// mistake is one that a host, or a GPU on a good day, lets pass.

struct Args {
  const float* in;
  float* out;
  int n;
};

extern __shared__ float dynamic[];

// Reverses the block's numbers.
template <bool kGood>
__device__ void Reverse(const Args& a) {
  __shared__ float tile[64];
  const int t = threadIdx.x;
  tile[t] = a.in[t];
  if (kGood) __syncthreads();
  a.out[t] = tile[63 - t];
}
extern "C" __global__ void MissingBarrier(const Args a) { Reverse<false>(a); }
extern "C" __global__ void WithBarrier(const Args a) { Reverse<true>(a); }

// Twice through the same tile: the second write must wait for the first reads.
template <bool kGood>
__device__ void ReverseTwice(const Args& a) {
  __shared__ float tile[64];
  const int t = threadIdx.x;
  for (int i = 0; i < 2; ++i) {
    tile[t] = a.in[64 * i + t];
    __syncthreads();
    a.out[64 * i + t] = tile[63 - t];
    if (kGood) __syncthreads();
  }
}
extern "C" __global__ void MissingSecondBarrier(const Args a) {
  ReverseTwice<false>(a);
}
extern "C" __global__ void WithSecondBarrier(const Args a) {
  ReverseTwice<true>(a);
}

// As vectors of four, whatever the pointers.
extern "C" __global__ void CopyVectors(const Args a) {
  const int t = threadIdx.x;
  reinterpret_cast<float4*>(a.out)[t] =
      reinterpret_cast<const float4*>(a.in)[t];
}

// Sums neighbours: of n numbers the last has none.
template <bool kGood>
__device__ void Neighbours(const Args& a) {
  const int t = threadIdx.x;
  if (t < a.n) a.out[t] = a.in[t] + (kGood && t + 1 == a.n ? 0 : a.in[t + 1]);
}
extern "C" __global__ void BeyondTheRow(const Args a) { Neighbours<false>(a); }
extern "C" __global__ void WithinTheRow(const Args a) { Neighbours<true>(a); }

// The maximum over warps, of which the block may have fewer than the array has
// places.
template <bool kGood>
__device__ void OverWarps(const Args& a) {
  __shared__ float of_warp[32];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = a.in[threadIdx.x];
  __syncthreads();
  const int count = kGood ? blockDim.x / 32 : 32;
  float most = of_warp[0];
  for (int w = 1; w < count; ++w) most = fmaxf(most, of_warp[w]);
  a.out[threadIdx.x] = most;
}
extern "C" __global__ void UnwrittenShared(const Args a) {
  OverWarps<false>(a);
}
extern "C" __global__ void WrittenShared(const Args a) { OverWarps<true>(a); }

// Threads from n on leave before the barrier.
template <bool kGood>
__device__ void ReverseFew(const Args& a) {
  const int t = threadIdx.x;
  if (!kGood && t >= a.n) return;
  if (t < a.n) dynamic[t] = a.in[t];
  __syncthreads();
  if (t < a.n) a.out[t] = dynamic[a.n - 1 - t];
}
extern "C" __global__ void DivergentBarrier(const Args a) {
  ReverseFew<false>(a);
}
extern "C" __global__ void CommonBarrier(const Args a) { ReverseFew<true>(a); }

// Blocks add to one number, without atomics.
template <bool kGood>
__device__ void AddUp(const Args& a) {
  a.out[kGood ? blockIdx.x : 0] += a.in[blockIdx.x];
}
extern "C" __global__ void BlocksRace(const Args a) { AddUp<false>(a); }
extern "C" __global__ void BlocksApart(const Args a) { AddUp<true>(a); }

// Row by row through shared memory and out by columns. kWidth 33: without bank
// conflicts.
template <int kWidth>
__device__ void Transpose(const Args& a) {
  __shared__ float tile[32][kWidth];
  const int x = threadIdx.x, y = threadIdx.y;
  tile[y][x] = a.in[32 * y + x];
  __syncthreads();
  a.out[32 * y + x] = tile[x][y];
}
extern "C" __global__ void ConflictingBanks(const Args a) { Transpose<32>(a); }
extern "C" __global__ void DistinctBanks(const Args a) { Transpose<33>(a); }

// Through a pointer to shared memory or to global, as n says.
extern "C" __global__ void EitherMemory(const Args a) {
  float* numbers = a.n > 0 ? dynamic : a.out;
  for (int i = 0; i < 4; ++i) numbers[4 * threadIdx.x + i] = a.in[i];
  __syncthreads();
  if (a.n > 0) a.out[threadIdx.x] = numbers[4 * threadIdx.x + 3];
}

// Numbers that lie n apart.
extern "C" __global__ void Strided(const Args a) {
  a.out[threadIdx.x] = a.in[a.n * threadIdx.x];
}

// Lanes take ways of different lengths and meet again for the sum over a warp.
extern "C" __global__ void Diverge(const Args a) {
  const int t = threadIdx.x;
  float x = 0;
  if (t % 4 == 0) {
    for (int i = 0; i <= t; ++i) x += a.in[i];
  } else if (t % 4 == 1) {
    x = -a.in[t];
  } else {
    for (int i = t; i > 0; i /= 2) x += 1;
  }
  for (int step = 16; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  a.out[t] = x;
}

// What a block and a thread are called, in three dimensions.
extern "C" __global__ void Places(const Args a) {
  const int block =
      (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread =
      (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  a.out[block * threads + thread] = block * 1000 + thread;
}
