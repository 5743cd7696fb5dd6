// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_EVALUATE_PYTHON_RANDOM_H_
#define CAPSTAN_INFERENCE_EVALUATE_PYTHON_RANDOM_H_

#include <cstdint>
#include <random>
#include <vector>

namespace capstan::evaluate {

// Python's random.Random(seed): the same draws.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);

  // random.sample(range(population), count): indices; count <= population.
  std::vector<int64_t> Sample(int64_t population, int64_t count);

 private:
  // Below `end`, at least 1.
  int64_t Below(int64_t end);

  std::mt19937 engine_;
};

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_PYTHON_RANDOM_H_
