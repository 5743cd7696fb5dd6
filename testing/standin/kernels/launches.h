// SPDX-License-Identifier: Apache-2.0
//
// What each kernel of kernels/cuda reads, writes and costs.
#ifndef CAPSTAN_TESTING_STANDIN_KERNELS_LAUNCHES_H_
#define CAPSTAN_TESTING_STANDIN_KERNELS_LAUNCHES_H_

#include <cstdint>

#include "kernels/cuda/cuda_kernels.h"
#include "testing/standin/device.h"

namespace capstan::standin {

// Fills a work from the arguments of a kernel, and replaces pointers to device
// memory by HostView's. Operations counted: those on float32, an exponential
// or a root as one. No rows or elements: no launches.
class Launch {
 public:
  explicit Launch(Work* work) : work_(work) { work->cost.launches = 0; }

  void Describe(kernels::cuda::RmsNormArgs& args);
  void Describe(kernels::cuda::RmsNormBackwardArgs& args);
  void Describe(kernels::cuda::RopeArgs& args);
  void Describe(kernels::cuda::SwiGluArgs& args);
  void Describe(kernels::cuda::SwiGluBackwardArgs& args);
  void Describe(kernels::cuda::DropoutArgs& args);
  void Describe(kernels::cuda::CrossEntropyArgs& args);
  void Describe(kernels::cuda::EmbeddingBackwardArgs& args);
  void Describe(kernels::cuda::AdamWArgs& args);
  void Describe(kernels::cuda::AdamW8BitArgs& args);
  void Describe(kernels::cuda::SquaredSumArgs& args);
  void Describe(kernels::cuda::DequantizeNf4Args& args);
  void Describe(kernels::cuda::CastFp8Args& args);
  void Describe(kernels::cuda::GroupChoicesArgs& args);
  void Describe(kernels::cuda::SumChosenArgs& args);

 private:
  void Name(const char* name, double operations, int launches);

  // `bytes` at p, unless it is null.
  template <typename T>
  void Read(T*& p, int64_t bytes) {
    Touch(p, bytes, true, false);
  }
  template <typename T>
  void Write(T*& p, int64_t bytes) {
    Touch(p, bytes, false, true);
  }
  template <typename T>
  void Update(T*& p, int64_t bytes) {
    Touch(p, bytes, true, true);
  }
  // Like Write or Read, but what doesn't leave the chip's caches, or where only
  // some bytes of the span are touched, as the caller counts himself.
  template <typename T>
  void Touch(T*& p, int64_t bytes, bool reads, bool writes,
             bool counts = true) {
    if (p == nullptr) return;
    AddSpan(p, bytes, reads, writes, counts);
    p = static_cast<T*>(HostView(p));
  }
  void AddSpan(const void* p, int64_t bytes, bool reads, bool writes,
               bool counts);

  Work* work_;
};

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_KERNELS_LAUNCHES_H_
