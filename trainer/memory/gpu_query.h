// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_MEMORY_GPU_QUERY_H_
#define CAPSTAN_TRAINER_MEMORY_GPU_QUERY_H_

#include <string>
#include <vector>

namespace capstan {

// A field of `nvidia-smi --query-gpu` (this process must not touch the driver
// before it forks), one value a GPU that CUDA_VISIBLE_DEVICES shows; none where
// that doesn't say.
std::vector<std::string> QueryGpus(const std::string& field);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_GPU_QUERY_H_
