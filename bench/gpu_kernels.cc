// SPDX-License-Identifier: Apache-2.0
//
// What bandwidth each kernel of kernels/cuda reaches on this machine's first
// GPU, against the card's: all of them are bound by memory. A line of JSON
// each:
// {"kernel":, "dtype":, "bytes":, "seconds":, "bytes_per_second":,
// "fraction":}, the last if the card's bandwidth is known, and both if the time
// is.
//
//     bazel run //bench:gpu_kernels -- [MIB]
//
// MIB: about what a kernel reads and writes, far beyond the GPU's cache.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <stdio.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/gpus.h"
#include "cluster/comm/create.h"
#include "cluster/comm/gpu_tools.h"
#include "cluster/launch/rank_info.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw_8bit.h"
#include "plugins/sdk/process_group.h"
#include "trainer/profile/gpu_specs.h"

namespace capstan {
namespace {

namespace cuda = kernels::cuda;

constexpr int kWarmUp = 3, kRounds = 20;
constexpr int64_t kWidth = 4096;  // of a row

struct Case {
  std::string kernel;
  int64_t bytes;  // read and written, each operand once
  std::function<void()> run;
};

// Seconds of a call, by events around kRounds of them.
double SecondsOf(const std::function<void()>& run, at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  for (int i = 0; i < kWarmUp; ++i) run();
  c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  begin.record(guard.getStream(device));
  for (int i = 0; i < kRounds; ++i) run();
  end.record(guard.getStream(device));
  end.synchronize();
  return begin.elapsedTime(end) * 1e-3 / kRounds;
}

std::vector<Case> CasesOf(const cuda::CudaKernels& kernels, int64_t bytes,
                          at::TensorOptions options) {
  const int64_t size = static_cast<int64_t>(options.dtype().itemsize());
  // As many rows as make two matrices of `bytes`.
  const int64_t rows = std::max<int64_t>(64, bytes / (2 * kWidth * size));
  const int64_t matrix = rows * kWidth * size;
  const at::Tensor x = at::ones({rows, kWidth}, options);
  const at::Tensor y = at::ones({rows, kWidth}, options);
  at::Tensor z = at::ones({rows, kWidth}, options);
  const at::Tensor weight = at::ones({kWidth}, options);
  const at::Tensor rstd = at::ones({rows}, options.dtype(at::kFloat));
  const at::Tensor table = at::ones({rows, 128}, options.dtype(at::kFloat));
  at::Tensor rotated = at::empty_like(x);
  at::Tensor gate = at::ones({rows, kWidth}, options);
  at::Tensor up = at::ones({rows, kWidth}, options);
  const auto floats = options.dtype(at::kFloat);
  const at::Tensor parameters = at::ones({rows, kWidth}, floats);
  const at::Tensor mean = at::zeros({rows, kWidth}, floats);
  const at::Tensor square = at::zeros({rows, kWidth}, floats);
  const auto bfloats = options.dtype(at::kBFloat16);
  const at::Tensor x16 = at::ones({rows, kWidth}, bfloats);
  const at::Tensor mean16 = at::zeros({rows, kWidth}, bfloats);
  const at::Tensor square16 = at::zeros({rows, kWidth}, bfloats);
  const auto bytes_of = options.dtype(at::kByte);
  const at::Tensor mean8 = at::zeros({rows, kWidth}, bytes_of);
  const at::Tensor square8 = at::zeros({rows, kWidth}, bytes_of);
  const at::Tensor mean_scales =
      at::zeros({rows * kWidth / kernels::kBlockOf8Bit}, floats);
  const at::Tensor square_scales = at::zeros_like(mean_scales);
  const at::Tensor targets = at::zeros({rows}, options.dtype(at::kLong));
  const at::Tensor samples = at::arange(1, options.dtype(at::kLong));
  at::Tensor embedding = at::zeros({1024, kWidth}, options);
  const at::Tensor tokens =
      at::arange(rows, options.dtype(at::kLong)).remainder(1024);
  // Of eight choices a row, half of x's rows.
  const at::Tensor choices =
      at::arange(rows / 16 * 8, options.dtype(at::kLong)).mul(2);
  return {
      {"rms_norm", 2 * matrix,
       [=, &kernels] { cuda::RmsNorm(kernels, x, weight, 1e-5); }},
      {"rms_norm_backward", 3 * matrix,
       [=, &kernels] {
         cuda::RmsNormBackward(kernels, y, x, weight, rstd, at::Tensor(),
                               {{}, at::empty_like(weight)});
       }},
      {"rope", 2 * matrix + rows * 128 * 4,
       [=, &kernels]() mutable { cuda::Rope(kernels, table, 1, x, rotated); }},
      {"swiglu", 3 * matrix, [=, &kernels] { cuda::SwiGlu(kernels, x, y); }},
      {"swiglu_backward", 6 * matrix,
       [=, &kernels]() mutable {
         cuda::SwiGluBackward(kernels, x, y, z, gate, up);
       }},
      {"dropout", 2 * matrix,
       [=, &kernels] { cuda::Dropout(kernels, x, samples, 7, 0.1); }},
      // One pass reads, one reads and writes.
      {"cross_entropy", 3 * matrix,
       [=, &kernels]() mutable {
         cuda::CrossEntropySum(kernels, z, targets, /*gradient=*/true, 1.0,
                               at::Tensor());
       }},
      // With the sort of the tokens.
      {"embedding_backward", matrix + 2 * embedding.numel() * size,
       [=, &kernels]() mutable {
         cuda::EmbeddingBackward(kernels, y, tokens, embedding);
       }},
      // Gradients, parameters and two moments, all but the first written, too.
      {"adamw", parameters.numel() * (size + 6 * 4),
       [=, &kernels] {
         kernels::AdamWByKernel(kernels, {}, {x, parameters, mean, square});
       }},
      {"adamw_bf16", parameters.numel() * (size + 2 * 4 + 4 * 2),
       [=, &kernels] {
         kernels::AdamWByKernel(kernels, {}, {x, parameters, mean16, square16});
       }},
      {"adamw_8bit", parameters.numel() * (size + 2 * 4 + 4),
       [=, &kernels] {
         kernels::AdamW8BitByKernel(
             kernels, {},
             {x, parameters, mean8, mean_scales, square8, square_scales});
       }},
      {"cast_fp8", (2 * 2 + 1) * rows * kWidth,
       [=, &kernels] {
         cuda::CastFp8(kernels, x16, at::kFloat8_e4m3fn, false, false, 448.0f,
                       1e-12f);
       }},
      {"cast_fp8, both", (2 * 2 + 2) * rows * kWidth,
       [=, &kernels] {
         cuda::CastFp8(kernels, x16.t(), at::kFloat8_e5m2, false, true,
                       57344.0f, 1e-12f);
       }},
      {"sum_chosen", (rows / 2 + rows / 16) * kWidth * size,
       [=, &kernels] {
         cuda::SumChosen(kernels, x, choices, 8, at::Tensor(), at::Tensor());
       }},
      {"squared_sum", matrix, [=, &kernels] { cuda::SquaredSum(kernels, x); }},
  };
}

int Main(int64_t mib) {
  const int gpus = CountGpus();
  if (gpus == 0) {
    std::fprintf(stderr, "no GPU\n");
    return 2;
  }
  // Loads LibTorch's CUDA part and takes the GPU.
  const auto group = CreateProcessGroup(RankInfo(), gpus);
  if (!group.ok()) {
    std::fprintf(stderr, "%s\n", std::string(group.status().message()).c_str());
    return 1;
  }
  const cuda::CudaKernels* kernels = cuda::Cuda();
  if (kernels == nullptr || kernels->capability(0) < cuda::kLeastCapability) {
    std::fprintf(stderr, "no kernels for this GPU\n");
    return 1;
  }
  const GpuSpecs* const specs = FindGpuSpecs(TheGpuTools()->name(0));
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const auto options =
        at::TensorOptions().dtype(dtype).device((*group)->device());
    for (const Case& one : CasesOf(*kernels, mib << 20, options)) {
      const double seconds = SecondsOf(one.run, (*group)->device());
      std::printf(
          "{\"kernel\": \"%s\", \"dtype\": \"%s\", \"bytes\": %lld, "
          "\"seconds\": %.9g",
          one.kernel.c_str(), c10::toString(dtype),
          static_cast<long long>(one.bytes), seconds);
      // 0 where events are coarser than a kernel.
      if (seconds > 0) {
        const double speed = static_cast<double>(one.bytes) / seconds;
        std::printf(", \"bytes_per_second\": %.6g", speed);
        if (specs != nullptr) {
          std::printf(", \"fraction\": %.4f", speed / specs->bandwidth);
        }
      }
      std::printf("}\n");
    }
  }
  return 0;
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) {
  int64_t mib = 1024;
  if (argc > 2 ||
      (argc == 2 && (!absl::SimpleAtoi(argv[1], &mib) || mib < 1))) {
    std::fprintf(stderr, "usage: gpu_kernels [MIB]\n");
    return 2;
  }
  return capstan::Main(mib);
}
