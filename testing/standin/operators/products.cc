// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of 16-bit matrices into float32: mm, addmm, bmm and baddbmm
// with out_dtype; grouped ones, _grouped_mm; and of scaled 8-bit matrices.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/native/GroupedMMUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <c10/core/Scalar.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <optional>
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
  SetProduct(a, b, &work.cost);
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

// Group g's matrix of t: t[g], or rows [begin, end).
Tensor PartOf(const Tensor& t, int64_t g, int64_t begin, int64_t end) {
  return t.dim() == 3 ? t.select(0, g) : t.slice(0, begin, end);
}

// What the device does, which alone knows where groups end. Of two ragged
// factors a group of no rows is left unwritten: compute capability 9 writes
// zeros, 10 anything.
void RunGroups(const Tensor& a, const Tensor& b, const Tensor& ends,
               const Tensor& out) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const int32_t* const end = ends.const_data_ptr<int32_t>();
  int64_t begin = 0;
  for (int64_t g = 0; g < ends.numel(); begin = end[g], ++g) {
    const int64_t ragged = b.dim() == 2 ? 1 : 0;
    TORCH_CHECK(begin <= end[g] && end[g] <= a.size(ragged),
                "_grouped_mm: group ", g, " is [", begin, ", ", end[g], ")");
    if (begin == end[g]) continue;
    const Tensor left = a.slice(ragged, begin, end[g]).to(at::kFloat);
    const Tensor right = PartOf(b, g, begin, end[g]).to(at::kFloat);
    PartOf(out, g, begin, end[g]).copy_(at::matmul(left, right));
  }
}

// Groups of rows of a, or of columns of a and rows of b.
Tensor GroupedMm(const Tensor& a, const Tensor& b,
                 const std::optional<Tensor>& ends,
                 const std::optional<Tensor>& bias,
                 std::optional<at::ScalarType> out_dtype) {
  at::native::_grouped_mm_validate_inputs(a, b, ends, bias, out_dtype);
  TORCH_CHECK(a.dim() == 2 && ends.has_value(),
              "the stand-in's _grouped_mm has groups of rows alone");
  const int major = at::cuda::getDeviceProperties(a.get_device())->major;
  TORCH_CHECK(a.scalar_type() == at::kBFloat16 &&
                  b.scalar_type() == at::kBFloat16 &&
                  (major == 9 || major == 10),
              "_grouped_mm would wait for the groups' ends: that isn't a "
              "product of bfloat16 on compute capability 9 or 10");
  if (b.dim() == 2) {  // the kernel's assertion on where groups may begin
    TORCH_CHECK(a.stride(0) == 1 && b.stride(1) == 1,
                "ragged factors whose rows aren't dense need groups of "
                "multiples of 8 rows");
  }
  const c10::cuda::CUDAGuard on_device(a.device());
  const Tensor out =
      at::native::create_grouped_gemm_output_tensor(a, b, ends, at::kBFloat16);
  Work work;
  work.name = "aten::_grouped_mm";
  for (const Tensor& t : {a, b, *ends}) {
    work.reads.push_back(SpanOf(t));
    work.cost.bytes_read += BytesOf(t);
  }
  work.writes.push_back(SpanOf(out));
  work.cost.bytes_written = BytesOf(out);
  work.cost.flops =
      2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
  work.cost.unit = Unit::kHalf;
  work.cost.launches = 2;  // the groups' addresses; the products
  work.run = [a = HostAlias(a), b = HostAlias(b), ends = HostAlias(*ends),
              out = HostAlias(out)] {
    RunGroups(a, b, ends, out);
    return Progress::kDone;
  };
  EnqueueOn(a.get_device(), std::move(work));
  return out;
}

// As LibTorch's checks (ScaledBlas.cpp) and cuBLASLt's have it.
void CheckScaled(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                 const Tensor& scale_b, at::ScalarType out_dtype) {
  const auto is_fp8 = [](const Tensor& t) {
    return t.scalar_type() == at::kFloat8_e4m3fn ||
           t.scalar_type() == at::kFloat8_e5m2;
  };
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                         a.get_device());
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor,
                         a.get_device());
  TORCH_CHECK(10 * major + minor >= 89,
              "torch._scaled_mm is only supported on CUDA devices with compute "
              "capability >= 9.0 or 8.9, or ROCm MI300+");
  TORCH_CHECK(is_fp8(a) && is_fp8(b) &&
                  (a.scalar_type() == at::kFloat8_e4m3fn ||
                   b.scalar_type() == at::kFloat8_e4m3fn),
              "Multiplication of two Float8_e5m2 matrices is not supported");
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0),
              "mat1 and mat2 shapes cannot be multiplied (", a.sizes(), " and ",
              b.sizes(), ")");
  TORCH_CHECK(a.stride(1) == 1 && a.stride(0) >= a.size(1) &&
                  b.stride(0) == 1 && b.stride(1) >= b.size(0),
              "mat1 must be row_major and mat2 col_major");
  TORCH_CHECK(a.size(1) % 16 == 0 && b.size(0) % 16 == 0 && b.size(1) % 16 == 0,
              "Expected trailing dimensions to be divisible by 16, but got ",
              a.sizes(), " and ", b.sizes());
  TORCH_CHECK(scale_a.scalar_type() == at::kFloat &&
                  scale_b.scalar_type() == at::kFloat,
              "scales must be float32");
  const bool one = scale_a.numel() == 1 && scale_b.numel() == 1;
  const bool rows = scale_a.sizes() == at::IntArrayRef({a.size(0), 1}) &&
                    scale_b.sizes() == at::IntArrayRef({1, b.size(1)}) &&
                    scale_a.is_contiguous() && scale_b.is_contiguous() &&
                    out_dtype == at::kBFloat16;
  TORCH_CHECK(one || rows, "Invalid scaling configuration: ", scale_a.sizes(),
              " and ", scale_b.sizes());
}

Tensor& ScaledMmOut(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                    const Tensor& scale_b, const std::optional<Tensor>& bias,
                    const std::optional<Tensor>& scale_result,
                    std::optional<at::ScalarType> out_dtype, bool /*fast*/,
                    Tensor& out) {
  const at::ScalarType dtype = out_dtype.value_or(a.scalar_type());
  CheckScaled(a, b, scale_a, scale_b, dtype);
  TORCH_CHECK(!bias.has_value() && !scale_result.has_value(),
              "the stand-in's _scaled_mm has neither bias nor scale_result");
  TORCH_CHECK(out.scalar_type() == dtype && out.is_contiguous() &&
                  out.sizes() == at::IntArrayRef(ProductSizes(a, b, 2)),
              "out must be a contiguous matrix of the product's shape and "
              "out_dtype");
  const c10::cuda::CUDAGuard on_device(a.device());
  Work work;
  work.name = "aten::_scaled_mm";
  for (const Tensor& t : {a, b, scale_a, scale_b}) {
    work.reads.push_back(SpanOf(t));
    work.cost.bytes_read += BytesOf(t);
  }
  work.writes.push_back(SpanOf(out));
  work.cost.bytes_written = BytesOf(out);
  SetProduct(a, b, &work.cost);
  work.cost.unit = UnitOfProducts(a.scalar_type());
  work.cost.launches = 1;
  work.run = [a = HostAlias(a), b = HostAlias(b), scale_a = HostAlias(scale_a),
              scale_b = HostAlias(scale_b), out = HostAlias(out)] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensor result = out;
    result.copy_(at::matmul(a.to(at::kFloat), b.to(at::kFloat))
                     .mul_(scale_a)
                     .mul_(scale_b));
    return Progress::kDone;
  };
  if (out.numel() > 0) EnqueueOn(a.get_device(), std::move(work));
  return out;
}

Tensor ScaledMm(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                const Tensor& scale_b, const std::optional<Tensor>& bias,
                const std::optional<Tensor>& scale_result,
                std::optional<at::ScalarType> out_dtype, bool fast) {
  const c10::cuda::CUDAGuard on_device(a.device());
  Tensor out =
      at::empty(ProductSizes(a, b, 2),
                a.options().dtype(out_dtype.value_or(a.scalar_type())));
  return ScaledMmOut(a, b, scale_a, scale_b, bias, scale_result, out_dtype,
                     fast, out);
}

}  // namespace

void AddProducts(torch::Library& library) {
  library.impl("_grouped_mm", TORCH_FN(GroupedMm));
  library.impl("mm.dtype", TORCH_FN(Mm));
  library.impl("mm.dtype_out", TORCH_FN(MmOut));
  library.impl("bmm.dtype", TORCH_FN(Bmm));
  library.impl("bmm.dtype_out", TORCH_FN(BmmOut));
  library.impl("addmm.dtype", TORCH_FN(Addmm));
  library.impl("addmm.dtype_out", TORCH_FN(AddmmOut));
  library.impl("baddbmm.dtype", TORCH_FN(Baddbmm));
  library.impl("baddbmm.dtype_out", TORCH_FN(BaddbmmOut));
  library.impl("_scaled_mm", TORCH_FN(ScaledMm));
  library.impl("_scaled_mm.out", TORCH_FN(ScaledMmOut));
}

}  // namespace capstan::standin
