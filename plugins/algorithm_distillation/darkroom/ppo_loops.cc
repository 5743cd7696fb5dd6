// SPDX-License-Identifier: Apache-2.0
#include "base/simd/simd.h"
#include "plugins/algorithm_distillation/darkroom/ppo_kernels.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#include "base/simd/target.h"

namespace capstan::darkroom {
namespace {

using kernels::Bf16;
using kernels::Fp16;

#include "base/simd/simd_vector.inc"
#include "base/simd/tanh_vector.inc"

// A tile of sums is kept in registers: rows by columns of 16.
constexpr int kColumns = SIMD_BYTES == 64 ? 4 : 1;
constexpr int kTile = 16 * kColumns;
static_assert(kHidden % kTile == 0 && kHidden % kRowBlock == 0, "");

#define SIMD_UNROLL _Pragma("GCC unroll 16")

SIMD_INLINE Floats Root(const Floats& x) {
  return Map(x, [](const auto& v) SIMD_LAMBDA {
    auto root = v;
#ifdef SIMD_AVX512
    root = _mm512_maskz_sqrt_ps(0xffff, v);
#elif defined(SIMD_AVX2)
    root = _mm256_sqrt_ps(v);
#else
    for (int i = 0; i < static_cast<int>(sizeof(v) / 4); ++i) {
      root[i] = __builtin_sqrtf(v[i]);
    }
#endif
    return root;
  });
}

using Tile = Floats[kRowBlock][kColumns];

// tile += a b for kRowBlock rows of a, the rows `row` apart and the columns
// `column`, and kTile columns of b, whose rows are kHidden apart.
SIMD_INLINE void Multiply(const float* a, int64_t row, int64_t column,
                          const float* b, int64_t depth, Tile& tile) {
  for (int64_t k = 0; k < depth; ++k, a += column, b += kHidden) {
    Floats right[kColumns];
    SIMD_UNROLL
    for (int c = 0; c < kColumns; ++c) right[c] = Load(b + 16 * c);
    SIMD_UNROLL
    for (int r = 0; r < kRowBlock; ++r) {
      const Floats left = Splat(a[r * row]);
      SIMD_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        tile[r][c] += left * right[c];
      }
    }
  }
}

// Calls body(r, c, sum) for each 16 sums of the tile.
template <typename Body>
SIMD_INLINE void ForTile(const Tile& tile, const Body& body) {
  SIMD_UNROLL
  for (int r = 0; r < kRowBlock; ++r) {
    SIMD_UNROLL
    for (int c = 0; c < kColumns; ++c) body(r, 16 * c, tile[r][c]);
  }
}

void Forward(const Network& net, const float* x, int64_t rows, int outputs,
             float* h1, float* h2, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int j = 0; j < kHidden; j += 16) {
      Floats sum = Load(net.b1 + j);
      SIMD_UNROLL
      for (int i = 0; i < kInputs; ++i) {
        sum += Load(net.w1[i] + j) * x[r * kInputs + i];
      }
      Store(h1 + r * kHidden + j, Tanh(sum));
    }
  }
  for (int64_t r0 = 0; r0 < rows; r0 += kRowBlock) {
    for (int j = 0; j < kHidden; j += kTile) {
      Tile tile = {};
      Multiply(h1 + r0 * kHidden, kHidden, 1, net.w2[0] + j, kHidden, tile);
      ForTile(tile, [&](int r, int c, const Floats& sum) SIMD_LAMBDA {
        Store(h2 + (r0 + r) * kHidden + j + c, sum + Load(net.b2 + j + c));
      });
    }
  }
  for (int64_t i = 0; i < rows * kHidden; i += 16) {
    Store(h2 + i, Tanh(Load(h2 + i)));
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int o = 0; o < outputs; ++o) {
      Floats sum = {};
      for (int j = 0; j < kHidden; j += 16) {
        sum += Load(h2 + r * kHidden + j) * Load(net.wo[o] + j);
      }
      out[r * kOutputs + o] = Sum(sum) + net.bo[o];
    }
  }
}

// dwo = d_out^T h2, dbo = the sum of d_out; h2 becomes the gradient before the
// second tanh, and db2 its sum.
SIMD_INLINE void HeadBackward(const Network& net, const float* d_out,
                              int64_t rows, int outputs, float* h2,
                              Network* gradient) {
  for (int j = 0; j < kHidden; j += 16) {
    Floats dwo[kOutputs] = {};
    Floats db2 = {};
    for (int64_t r = 0; r < rows; ++r) {
      const Floats h = Load(h2 + r * kHidden + j);
      Floats dh = {};
      for (int o = 0; o < outputs; ++o) {
        const float d = d_out[r * kOutputs + o];
        dwo[o] += h * d;
        dh += Load(net.wo[o] + j) * d;
      }
      const Floats dz = dh * (1.0f - h * h);
      Store(h2 + r * kHidden + j, dz);
      db2 += dz;
    }
    Store(gradient->b2 + j, db2);
    for (int o = 0; o < outputs; ++o) Store(gradient->wo[o] + j, dwo[o]);
  }
  for (int o = 0; o < outputs; ++o) {
    float sum = 0.0f;
    for (int64_t r = 0; r < rows; ++r) sum += d_out[r * kOutputs + o];
    gradient->bo[o] = sum;
  }
}

// h1 becomes the gradient before the first tanh: dz2 w2^T * (1 - h1^2).
SIMD_INLINE void HiddenBackward(const Network& net, const float* dz2,
                                int64_t rows, float* h1) {
  alignas(64) float transposed[kHidden][kHidden];
  for (int k = 0; k < kHidden; ++k) {
    for (int j = 0; j < kHidden; ++j) transposed[j][k] = net.w2[k][j];
  }
  for (int64_t r0 = 0; r0 < rows; r0 += kRowBlock) {
    for (int k = 0; k < kHidden; k += kTile) {
      Tile tile = {};
      Multiply(dz2 + r0 * kHidden, kHidden, 1, transposed[0] + k, kHidden,
               tile);
      ForTile(tile, [&](int r, int c, const Floats& dh) SIMD_LAMBDA {
        float* h = h1 + (r0 + r) * kHidden + k + c;
        Store(h, dh * (1.0f - Load(h) * Load(h)));
      });
    }
  }
}

void Backward(const Network& net, const float* x, const float* d_out,
              int64_t rows, int outputs, float* h1, float* h2,
              Network* gradient) {
  HeadBackward(net, d_out, rows, outputs, h2, gradient);
  for (int k = 0; k < kHidden; k += kRowBlock) {
    for (int j = 0; j < kHidden; j += kTile) {
      Tile tile = {};
      Multiply(h1 + k, 1, kHidden, h2 + j, rows, tile);
      ForTile(tile, [&](int r, int c, const Floats& sum) SIMD_LAMBDA {
        Store(gradient->w2[k + r] + j + c, sum);
      });
    }
  }
  HiddenBackward(net, h2, rows, h1);
  for (int j = 0; j < kHidden; j += 16) {
    Floats dw[kInputs] = {};
    Floats db = {};
    for (int64_t r = 0; r < rows; ++r) {
      const Floats dz = Load(h1 + r * kHidden + j);
      SIMD_UNROLL
      for (int i = 0; i < kInputs; ++i) dw[i] += dz * x[r * kInputs + i];
      db += dz;
    }
    for (int i = 0; i < kInputs; ++i) Store(gradient->w1[i] + j, dw[i]);
    Store(gradient->b1 + j, db);
  }
}

float SumOfSquares(const float* x, int64_t n) {
  Floats sums[4] = {};
  for (int64_t i = 0; i < n; i += 64) {
    SIMD_UNROLL
    for (int k = 0; k < 4; ++k) {
      const Floats v = Load(x + i + 16 * k);
      sums[k] += v * v;
    }
  }
  return Sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void Adam(const AdamStep& step, const float* gradient, int64_t n,
          float* parameter, float* mean, float* square) {
  for (int64_t i = 0; i < n; i += 16) {
    const Floats g = Load(gradient + i) * step.gradient_scale;
    const Floats m = Load(mean + i) * step.beta1 + g * step.weight1;
    const Floats v = Load(square + i) * step.beta2 + g * g * step.weight2;
    Store(mean + i, m);
    Store(square + i, v);
    Store(parameter + i,
          Load(parameter + i) -
              m * step.rate / (Root(v) * step.root2 + step.epsilon));
  }
}

}  // namespace

const PpoKernels SIMD_SYMBOL(kPpo) = {
    SIMD_NAME, Forward, Backward, SumOfSquares, Adam,
};

}  // namespace capstan::darkroom
