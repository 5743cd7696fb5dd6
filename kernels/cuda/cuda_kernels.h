// SPDX-License-Identifier: Apache-2.0
//
// The fused operators on a GPU, a table of functions on memory in a library of
// its own, libcapstan_kernels_cuda.so, so that nothing else depends on CUDA.
// Callers use the wrappers for tensors in dispatch.h.
//
// To add one: (1) a struct of arguments and an entry of CudaKernels here; (2)
// kernel and launcher in a .cu file that includes only device.h, the launcher
// declared here and added to MakeTable; (3) a function in dispatch.h
// that checks tensors and allocates outputs; (4) a check in testing/cuda. Add a
// new .cu file to BUILD and to testing/cuda/emulated_kernels.cc.
//
// Attention is ATen's flash attention, and matrix products are cuBLAS's:
// kernels of our own would not beat them.
#ifndef CAPSTAN_KERNELS_CUDA_CUDA_KERNELS_H_
#define CAPSTAN_KERNELS_CUDA_CUDA_KERNELS_H_

#include <algorithm>
#include <cstdint>

namespace capstan::kernels::cuda {

// The type behind a `void*`. Arithmetic is float32 for all.
enum class DType : int32_t { kNone, kFloat32, kBFloat16, kFloat16 };

// Matrices are row-major, and contiguous unless they have a stride. Counts may
// be 0. Vector loads are used where pointers, widths and strides allow.

struct RmsNormArgs {
  DType dtype;         // of x, weight and y
  const void* x;       // [rows, n]
  const void* weight;  // [n]
  void* y;             // [rows, n]: weight * round(x * rstd)
  float* rstd;         // [rows]: written, or read if `rstd_given`
  bool rstd_given;     // make y again from it
  float eps;
  int64_t rows, n;
  // [rows, n] or null: x + add, rounded, is written to `sum` and normalised.
  const void* add;
  void* sum;      // [rows, n]; may be x or add
  void* again;    // [rows, n] or null: the sum, a second time
  bool plus_one;  // y: (1 + weight) * x * rstd, rounded once
  // Without `add` rows of x may lie in groups of `heads`, dense, each x_stride
  // elements behind the one before. 0: all are dense.
  int64_t heads, x_stride;
};

// Rows of RmsNormBackward's `partial`: about one wave of blocks, by the shape
// alone, so that sums are reproducible.
inline int64_t RmsNormPartials(int64_t rows, int64_t n) {
  return std::max<int64_t>(1,
                           std::min<int64_t>(rows / 4, n > 1024 ? 512 : 1024));
}

// Bytes of shared memory that a block of RmsNormBackward sums a row of dweight
// in. 0: longer rows don't fit, along with what a sum over the block takes.
constexpr int64_t kRmsNormSharedColumns = 12000;
constexpr int64_t RmsNormSharedBytes(int64_t n) {
  return n <= kRmsNormSharedColumns ? n * int64_t{sizeof(float)} : 0;
}

struct RmsNormBackwardArgs {
  DType dtype;           // of dy, x, weight, residual and dx
  const void* dy;        // [rows, n]
  const void* x;         // [rows, n], what was normalised
  const void* weight;    // [n]
  const float* rstd;     // [rows]
  const void* residual;  // [rows, n] or null: added to dx
  void* dx;              // [rows, n]; may be dy or residual
  float* partial;        // [RmsNormPartials(rows, n), n]; null: no dweight
  DType dweight_dtype;   // float32 or dtype
  void* dweight;         // [n]
  bool add_dweight;      // to what is there, rather than overwrite it
  int64_t rows, n;
  bool plus_one;  // as in RmsNormArgs
  // Rows of x and of dx in groups, as in RmsNormArgs; then without residual.
  int64_t heads, x_stride, dx_stride;
};

struct RopeArgs {
  DType dtype;
  const void* x;       // [rows, heads * head_dim], to be rotated
  void* y;             // the same, the result; may be x
  const float* table;  // [positions, head_dim], as RopeTable makes it
  int64_t rows, positions, heads, head_dim;
  float sign;                  // 1 forward, -1 backward
  int64_t x_stride, y_stride;  // elements from a row to the next
};

// act(gate) * up: silu, or GELU approximated by tanh (kernels/layers).
struct SwiGluArgs {
  DType dtype;
  bool gelu;
  const void* gate;  // [rows, n]
  const void* up;    // [rows, n]
  void* out;         // [rows, n], dense
  int64_t rows, n;
  int64_t stride;  // of gate and up: elements from a row to the next
};

struct SwiGluBackwardArgs {
  DType dtype;
  bool gelu;
  const void* gate;  // [rows, n]
  const void* up;    // [rows, n]
  void* d_out;       // [rows, n], dense; becomes act(gate) * up
  void* d_gate;      // [rows, n]; may be gate
  void* d_up;        // [rows, n]; may be up
  int64_t rows, n;
  int64_t stride;    // of gate and up: elements from a row to the next
  int64_t d_stride;  // of d_gate and d_up
};

// out = x * factor, or 0 where random bits (base/random.h) are below a bound of
// 2^32; with `noise`, out = x + noise * u, u uniform in [-1, 1]. Four columns
// share a counter, made of sample, row in it and columns.
struct DropoutArgs {
  DType dtype;
  const void* x;           // [rows, n]
  void* out;               // [rows, n]; may be x
  const int64_t* samples;  // [rows / length]
  const float* noise;      // [rows / length] or null
  int64_t first;           // a sample's first row has this number in it
  uint64_t key;
  uint64_t dropped_below;
  float factor;
  int64_t rows, n;
  int64_t length;  // rows of a sample
};

struct CrossEntropyArgs {
  DType dtype;
  void* logits;            // [rows, vocab]
  const int64_t* targets;  // [rows]; negative: the row doesn't count; from
                           // vocab on: the loss becomes NaN
  const float* weights;    // [rows] or null: all 1
  bool gradient;  // replaces logits by weight * factor * (softmax - 1 at the
                  // target)
  float factor;
  float smoothing;  // in [0, 1): the share of the vocabulary's mean loss
  float* losses;    // [rows], workspace
  float* sum;       // of weight * loss: one number, summed in a fixed order
  int64_t rows, vocab;
};

// d_weight[token] += the sum of dy over the token's rows, in a fixed order, in
// float32 and rounded once: without atomics, hence reproducible.
struct EmbeddingBackwardArgs {
  DType dtype;            // of dy
  const void* dy;         // [rows, hidden]
  const int64_t* tokens;  // [rows], ascending; those outside the vocabulary
                          // are left out
  const int64_t* order;   // [rows]: the row of dy of each, ascending in a token
  DType weight_dtype;     // float32 or dtype
  void* d_weight;         // [vocab, hidden]
  int64_t rows, hidden, vocab;
};

// x in E4M3 or E5M2, scaled as kernels/layers/fp8_linear.h says, with the CPU's
// bits: x / scale, rounded, where scale is the greatest magnitude / `most`.
struct CastFp8Args {
  const void* x;  // bfloat16 [rows, n]; n is a multiple of 8
  int64_t rows, n;
  int64_t stride;    // elements from a row to the next
  bool turned;       // the result is that of x^T
  bool by_row;       // each row of the result has a scale
  bool e5m2;         // else E4M3
  float most;        // the format's
  float least_amax;  // what a greatest magnitude is at least
  uint8_t* out;      // [rows, n] or [n, rows]
  int64_t width;     // bytes from a row of `out` to the next: a multiple of 16,
                     // n or the least that is rows or more, filled by zeros
  uint8_t* also;     // if turned and not by_row: [rows, n], the result for x
                     // itself; or null
  float* scale;      // one, or one a row of `out`
  int32_t* partial;  // workspace: [partials], times n if turned and by_row
  int32_t partials;  // at least 1
};
// By the rows of x.
inline int32_t CastFp8Partials(int64_t rows) {
  return static_cast<int32_t>(
      std::max<int64_t>(1, std::min<int64_t>(rows / 8, 256)));
}

// Where rows go that each choose top_k experts (kernels/layers/moe.h): the
// choices [rows * top_k] grouped by expert, in a group by row. Blocks read all
// of them rather than sort, so that one launch does it, with the same result
// each time.
struct GroupChoicesArgs {
  const int64_t* expert;  // [choices], in [0, experts)
  const float* share;     // [choices]
  int64_t choices;
  int32_t experts;
  int32_t top_k;
  bool reversed;  // the last expert's group comes first
  bool padded;    // each group ends with one more choice: of row 0, share 0
  int64_t* row;   // [choices, + experts if padded]: the row of each place
  float* sorted_share;  // the same of shares
  int64_t* order;       // [choices]: each one's place
  int32_t* ends;        // [experts]: the place behind each group
  float* chosen;        // [experts], by expert: choices, without padding
};

// y[r] = add[r] + the sum over i of share[r, i] * x[order[r, i]], in float32.
struct SumChosenArgs {
  DType dtype;    // of x, add and y
  const void* x;  // [places, n]
  int64_t places;
  const int64_t* order;  // [rows, top_k]
  const float* share;    // [rows, top_k] or null: all 1
  const void* add;       // [rows, n] or null
  void* y;               // [rows, n]
  int64_t rows, top_k, n;
};

// Constants of a step of AdamW.
struct AdamWFactors {
  float gradient_scale;
  float decay;    // 1 - lr * weight_decay
  float weight1;  // 1 - beta1
  float beta2;
  float weight2;  // 1 - beta2
  float rate;     // lr / (1 - beta1^t)
  float root2;    // sqrt(1 - beta2^t)
  float epsilon;
};

// As in kernels/optimizer/adamw.h, with the same bits, over n elements. State
// in bfloat16 is rounded at random as adamw_bf16.h says, with key and begin.
struct AdamWArgs {
  DType gradient_dtype;
  const void* gradient;
  float* parameter;
  DType state_dtype;  // float32 or bfloat16
  void* exp_avg;
  void* exp_avg_sq;
  DType working_dtype;  // kNone: no working copy
  void* working;
  const float* device_scale;  // null: 1. Not finite: nothing is written
  AdamWFactors factors;
  uint64_t key;
  int64_t begin;
  int64_t n;
};

// How codes of 8 bits and values stand for each other: kernels/optimizer/
// adamw_8bit.cc makes it. Decade d of the values lies between 10^(d-7) and
// 10^(d-6). Numbers of codes, from 0 with the sign apart, begin a decade at a
// power of two; after the decades comes 1 alone.
constexpr int kDecadesOf8Bit = 7;
struct AdamW8BitMap {
  int32_t begin[kDecadesOf8Bit + 1];
  float first[kDecadesOf8Bit + 1];  // value
  float step[kDecadesOf8Bit + 1];   // from a value to the next
  // A magnitude's decade is found by comparisons, and its interval there by a
  // product. Below threshold[0] 0 is nearest.
  float threshold[kDecadesOf8Bit];  // from here on its values are nearest
  float low[kDecadesOf8Bit];        // where its first interval begins
  float scale[kDecadesOf8Bit];      // 1 / an interval's width
  float top;                        // from here on 1 is nearest
};

// As in kernels/optimizer/adamw_8bit.h, with the same bits; what is like
// AdamWArgs is so there. The maps are part of the arguments.
constexpr int kAdamW8BitBlock = 256;
struct AdamW8BitArgs {
  DType gradient_dtype;
  const void* gradient;
  float* parameter;
  uint8_t* exp_avg;
  float* exp_avg_absmax;  // one a block
  uint8_t* exp_avg_sq;
  float* exp_avg_sq_absmax;
  DType working_dtype;
  void* working;
  const float* device_scale;
  AdamWFactors factors;
  int64_t n;
  AdamW8BitMap signed_map;    // of exp_avg
  AdamW8BitMap unsigned_map;  // of exp_avg_sq
};

// The sum of squares in float64, in a fixed order that depends only on n.
constexpr int64_t kSquaredSumPartials = 1024;
struct SquaredSumArgs {
  DType dtype;
  const void* x;    // [n]
  double* partial;  // [kSquaredSumPartials], workspace
  double* sum;      // one number
  int64_t n;
};

// The values of a matrix packed as kernels/quant/nf4.h says, with the same bits
// before they are rounded to `dtype`. Tables are part of the arguments.
constexpr int64_t kNf4ScaleValues = 64;  // values with one scale
constexpr int64_t kNf4ThreadValues = 8;
struct DequantizeNf4Args {
  DType dtype;
  const uint8_t* packed;            // [ceil(n / 2)]
  const float* scales;              // one a block; null: these three
  const uint8_t* quantised_scales;  // one a block
  const float* group_scales;        // one a 256 blocks
  const float* offset;              // of all
  void* out;                        // [n]: the values from `first` on
  int64_t first;                    // a multiple of kNf4ThreadValues
  int64_t n;
  float values[16];
  float scale_values[256];
};

// Entries enqueue work on `stream` (a cudaStream_t of the current device) and
// return null, or CUDA's error message. They neither allocate nor block, so
// CUDA graphs can capture them.
struct CudaKernels {
  // The library's CAPSTAN_CUDA_KERNELS_HASH: the build's hash of this header
  // without comments. Stays first.
  uint64_t hash;
  // The device's compute capability, 10 * major + minor; 0: unknown. The
  // kernels need kLeastCapability.
  int (*capability)(int device);
  // LibTorch's current stream of the device.
  void* (*current_stream)(int device);
  const char* (*rms_norm)(const RmsNormArgs& args, void* stream);
  const char* (*rms_norm_backward)(const RmsNormBackwardArgs& args,
                                   void* stream);
  const char* (*rope)(const RopeArgs& args, void* stream);
  const char* (*swiglu)(const SwiGluArgs& args, void* stream);
  const char* (*swiglu_backward)(const SwiGluBackwardArgs& args, void* stream);
  const char* (*cross_entropy)(const CrossEntropyArgs& args, void* stream);
  const char* (*embedding_backward)(const EmbeddingBackwardArgs& args,
                                    void* stream);
  const char* (*adamw)(const AdamWArgs& args, void* stream);
  const char* (*adamw_8bit)(const AdamW8BitArgs& args, void* stream);
  const char* (*squared_sum)(const SquaredSumArgs& args, void* stream);
  const char* (*dropout)(const DropoutArgs& args, void* stream);
  const char* (*dequantize_nf4)(const DequantizeNf4Args& args, void* stream);
  const char* (*cast_fp8)(const CastFp8Args& args, void* stream);
  const char* (*group_choices)(const GroupChoicesArgs& args, void* stream);
  const char* (*sum_chosen)(const SumChosenArgs& args, void* stream);
};
constexpr int kLeastCapability = 80;

// The launchers, defined by the .cu files, and their table.
const char* LaunchRmsNorm(const RmsNormArgs& args, void* stream);
const char* LaunchRmsNormBackward(const RmsNormBackwardArgs& args,
                                  void* stream);
const char* LaunchRope(const RopeArgs& args, void* stream);
const char* LaunchSwiGlu(const SwiGluArgs& args, void* stream);
const char* LaunchSwiGluBackward(const SwiGluBackwardArgs& args, void* stream);
const char* LaunchCrossEntropy(const CrossEntropyArgs& args, void* stream);
const char* LaunchEmbeddingBackward(const EmbeddingBackwardArgs& args,
                                    void* stream);
const char* LaunchAdamW(const AdamWArgs& args, void* stream);
const char* LaunchAdamW8Bit(const AdamW8BitArgs& args, void* stream);
const char* LaunchSquaredSum(const SquaredSumArgs& args, void* stream);
const char* LaunchDropout(const DropoutArgs& args, void* stream);
const char* LaunchDequantizeNf4(const DequantizeNf4Args& args, void* stream);
const char* LaunchCastFp8(const CastFp8Args& args, void* stream);
const char* LaunchGroupChoices(const GroupChoicesArgs& args, void* stream);
const char* LaunchSumChosen(const SumChosenArgs& args, void* stream);

// `hash`: CAPSTAN_CUDA_KERNELS_HASH of kernels/cuda/cuda_kernels_hash.h.
constexpr CudaKernels MakeTable(uint64_t hash, int (*capability)(int device),
                                void* (*current_stream)(int device)) {
  return {hash,
          capability,
          current_stream,
          LaunchRmsNorm,
          LaunchRmsNormBackward,
          LaunchRope,
          LaunchSwiGlu,
          LaunchSwiGluBackward,
          LaunchCrossEntropy,
          LaunchEmbeddingBackward,
          LaunchAdamW,
          LaunchAdamW8Bit,
          LaunchSquaredSum,
          LaunchDropout,
          LaunchDequantizeNf4,
          LaunchCastFp8,
          LaunchGroupChoices,
          LaunchSumChosen};
}

constexpr char kCudaKernelsLibrary[] = "libcapstan_kernels_cuda.so";
// An environment variable: another library's path.
constexpr char kCudaKernelsVariable[] = "CAPSTAN_CUDA_KERNELS";
// The symbol of the library's CudaKernels.
constexpr char kCudaKernelsSymbol[] = "capstan_cuda_kernels_v1";

// The library's table; null if it wasn't built or LibTorch's CUDA part isn't
// loaded (callers then use ATen's operators). The first call looks for it in
// the folders of this code and of the program and in their parents, or takes
// the variable's, and throws if that can't be read. Any thread.
const CudaKernels* Cuda();

}  // namespace capstan::kernels::cuda

#endif  // CAPSTAN_KERNELS_CUDA_CUDA_KERNELS_H_
