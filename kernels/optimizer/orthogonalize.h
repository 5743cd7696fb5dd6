// SPDX-License-Identifier: Apache-2.0
//
// The orthogonal factor of a matrix by Newton-Schulz iterations, as Muon's
// update needs it (Jordan et al., 2024, https://kellerjordan.github.io/posts/
// muon).
#ifndef CAPSTAN_KERNELS_OPTIMIZER_ORTHOGONALIZE_H_
#define CAPSTAN_KERNELS_OPTIMIZER_ORTHOGONALIZE_H_

#include <ATen/core/Tensor.h>

#include <vector>

namespace capstan::kernels {

// One iteration: X becomes a X + b (X X^T) X + c (X X^T)^2 X, so each singular
// value s becomes a s + b s^3 + c s^5.
struct QuinticStep {
  double a = 0.0, b = 0.0, c = 0.0;
};

// `steps` times Jordan's polynomial, whose slope at 0 is steep; after 5,
// singular values above 0.01 end between 0.5 and 1.25.
std::vector<QuinticStep> JordanSteps(int steps);

// The optimal polynomials for singular values from 0.001 on (Amsel et al.,
// "The Polar Express", 2025, algorithm 1, with the safety of 2 % that
// modded-nanogpt uses); a different one in each step, at most kPolarSteps.
// After 5, those above 0.01 end between 0.85 and 1.15.
constexpr int kPolarSteps = 5;
constexpr double kPolarMargin = 1.02;
std::vector<QuinticStep> PolarExpressSteps(int steps);

struct NewtonSchulz {
  std::vector<QuinticStep> steps;
  // X is first divided by `margin` times its Frobenius norm, but by no less
  // than `epsilon`, so that no singular value is above 1.
  double margin = 1.0;
  double epsilon = 1e-7;
  // kFloat or kBFloat16: what the products are computed in (the latter with
  // LibTorch's, as torch.optim.Muon's).
  at::ScalarType dtype = at::kFloat;
};

// Replaces `matrices`, float32 and contiguous [.., rows, columns], each by
// nearly U V^T of its singular value decomposition U S V^T.
//
// In float32 on the CPU the symmetric products are computed by half, and where
// one side is clearly longer the iterations run on the smaller side's Gram
// matrix: K steps of m x n, m <= n, take K(3m^2n + m^3) floating-point
// operations or 3m^2n + (4K - 3)m^3, whichever is less, where the formula has
// K(4m^2n + 2m^3). Other values of `dtype` and devices use LibTorch's products,
// on a GPU on the current stream, without blocking.
void Orthogonalize(const NewtonSchulz& options, const at::Tensor& matrices);

// The bytes that it holds at most beside `matrices`, of `numel` elements in
// all.
int64_t OrthogonalizeWorkspace(const NewtonSchulz& options, int64_t numel,
                               int64_t rows, int64_t columns, bool on_gpu);

// Exposed for tests: whether the iterations would run on the Gram matrix.
bool OnGramMatrix(int64_t rows, int64_t columns, int64_t steps);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_ORTHOGONALIZE_H_
