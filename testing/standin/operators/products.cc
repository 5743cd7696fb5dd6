// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of 16-bit matrices into float32: mm, addmm, bmm and baddbmm
// with out_dtype.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <c10/core/Scalar.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

#include "testing/standin/operators/arguments.h"
#include "testing/standin/operators/cost.h"
#include "testing/standin/operators/special.h"

namespace capstan::standin {
namespace {

using at::Tensor;

// As LibTorch checks them (Blas.cpp).
void CheckDtypes(const Tensor& self, const Tensor& a, const Tensor& b,
                 at::ScalarType out_dtype) {
  TORCH_CHECK(a.is_cuda() && b.is_cuda(), "factors must be on the GPU");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(),
              "expected mat1 and mat2 to have the same dtype, but got: ",
              a.scalar_type(), " != ", b.scalar_type());
  TORCH_CHECK(
      out_dtype == a.scalar_type() ||
          (out_dtype == at::kFloat &&
           (a.scalar_type() == at::kHalf || a.scalar_type() == at::kBFloat16)),
      "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
  TORCH_CHECK(!self.defined() || self.scalar_type() == out_dtype ||
                  self.scalar_type() == a.scalar_type(),
              "self dtype must match either out_dtype or the factors' dtype");
}

std::vector<int64_t> ProductSizes(const Tensor& a, const Tensor& b,
                                  int64_t dimensions) {
  TORCH_CHECK(a.dim() == dimensions && b.dim() == dimensions &&
                  a.size(-1) == b.size(-2) &&
                  (dimensions == 2 || a.size(0) == b.size(0)),
              "mat1 and mat2 shapes cannot be multiplied (", a.sizes(), " and ",
              b.sizes(), ")");
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  return sizes;
}

// out = beta self + alpha a b; self may be undefined, or out.
void Enqueue(const std::string& name, const Tensor& self, const Tensor& a,
             const Tensor& b, double beta, double alpha, const Tensor& out) {
  const bool adds = self.defined() && beta != 0.0;
  const bool in_place = adds && self.is_same(out);
  Work work;
  work.name = name;
  for (const Tensor& t : {a, b, adds ? self : Tensor()}) {
    if (SpanOf(t).bytes == 0) continue;
    work.reads.push_back(SpanOf(t));
    work.cost.bytes_read += BytesOf(t);
  }
  work.writes.push_back(SpanOf(out));
  work.cost.bytes_written = BytesOf(out);
  work.cost.flops =
      2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
  work.cost.unit = UnitOfProducts(a.scalar_type());
  // What is added is copied into the result first.
  work.cost.launches = adds && !in_place ? 2 : 1;
  work.run = [a = HostAlias(a), b = HostAlias(b),
              self = HostAlias(adds ? self : Tensor()), out = HostAlias(out),
              alpha, beta] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensor sum = at::matmul(a.to(at::kFloat), b.to(at::kFloat));
    if (alpha != 1.0) sum.mul_(alpha);
    if (self.defined()) sum.add_(self.to(at::kFloat), beta);
    Tensor result = out;
    result.copy_(sum);
    return Progress::kDone;
  };
  EnqueueOn(a.get_device(), std::move(work));
}

Tensor& ProductInto(const char* name, const Tensor& self, const Tensor& a,
                    const Tensor& b, at::ScalarType dtype, int64_t dimensions,
                    double beta, double alpha, Tensor& out) {
  CheckDtypes(self, a, b, dtype);
  TORCH_CHECK(out.scalar_type() == dtype,
              "out_dtype must be the same as the dtype of the provided out "
              "tensor");
  const c10::cuda::CUDAGuard on_device(a.device());
  const std::vector<int64_t> sizes = ProductSizes(a, b, dimensions);
  if (out.sizes() != at::IntArrayRef(sizes)) out.resize_(sizes);
  if (out.numel() > 0) Enqueue(name, self, a, b, beta, alpha, out);
  return out;
}

Tensor Product(const char* name, const Tensor& self, const Tensor& a,
               const Tensor& b, at::ScalarType dtype, int64_t dimensions,
               double beta, double alpha) {
  CheckDtypes(self, a, b, dtype);
  const c10::cuda::CUDAGuard on_device(a.device());
  Tensor out =
      at::empty(ProductSizes(a, b, dimensions), a.options().dtype(dtype));
  return ProductInto(name, self, a, b, dtype, dimensions, beta, alpha, out);
}

Tensor Mm(const Tensor& a, const Tensor& b, at::ScalarType dtype) {
  return Product("aten::mm", Tensor(), a, b, dtype, 2, 0.0, 1.0);
}
Tensor& MmOut(const Tensor& a, const Tensor& b, at::ScalarType dtype,
              Tensor& out) {
  return ProductInto("aten::mm", Tensor(), a, b, dtype, 2, 0.0, 1.0, out);
}
Tensor Bmm(const Tensor& a, const Tensor& b, at::ScalarType dtype) {
  return Product("aten::bmm", Tensor(), a, b, dtype, 3, 0.0, 1.0);
}
Tensor& BmmOut(const Tensor& a, const Tensor& b, at::ScalarType dtype,
               Tensor& out) {
  return ProductInto("aten::bmm", Tensor(), a, b, dtype, 3, 0.0, 1.0, out);
}
Tensor Addmm(const Tensor& self, const Tensor& a, const Tensor& b,
             at::ScalarType dtype, const at::Scalar& beta,
             const at::Scalar& alpha) {
  return Product("aten::addmm", self, a, b, dtype, 2, beta.toDouble(),
                 alpha.toDouble());
}
Tensor& AddmmOut(const Tensor& self, const Tensor& a, const Tensor& b,
                 at::ScalarType dtype, const at::Scalar& beta,
                 const at::Scalar& alpha, Tensor& out) {
  return ProductInto("aten::addmm", self, a, b, dtype, 2, beta.toDouble(),
                     alpha.toDouble(), out);
}
Tensor Baddbmm(const Tensor& self, const Tensor& a, const Tensor& b,
               at::ScalarType dtype, const at::Scalar& beta,
               const at::Scalar& alpha) {
  return Product("aten::baddbmm", self, a, b, dtype, 3, beta.toDouble(),
                 alpha.toDouble());
}
Tensor& BaddbmmOut(const Tensor& self, const Tensor& a, const Tensor& b,
                   at::ScalarType dtype, const at::Scalar& beta,
                   const at::Scalar& alpha, Tensor& out) {
  return ProductInto("aten::baddbmm", self, a, b, dtype, 3, beta.toDouble(),
                     alpha.toDouble(), out);
}

}  // namespace

void AddProducts(torch::Library& library) {
  library.impl("mm.dtype", TORCH_FN(Mm));
  library.impl("mm.dtype_out", TORCH_FN(MmOut));
  library.impl("bmm.dtype", TORCH_FN(Bmm));
  library.impl("bmm.dtype_out", TORCH_FN(BmmOut));
  library.impl("addmm.dtype", TORCH_FN(Addmm));
  library.impl("addmm.dtype_out", TORCH_FN(AddmmOut));
  library.impl("baddbmm.dtype", TORCH_FN(Baddbmm));
  library.impl("baddbmm.dtype_out", TORCH_FN(BaddbmmOut));
}

}  // namespace capstan::standin
