// SPDX-License-Identifier: Apache-2.0
//
// What part of its best a matrix product reaches by its shape.
#ifndef CAPSTAN_TESTING_ROOFLINE_PRODUCT_MODEL_H_
#define CAPSTAN_TESTING_ROOFLINE_PRODUCT_MODEL_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace capstan {

// So many products of [m, k] by [k, n].
struct ProductShape {
  int64_t products = 0, m = 0, n = 0, k = 0;  // 0: not a product
};

// Streaming multiprocessors of a GPU by its key (GpuSpecs); 0: unknown.
int MultiprocessorsOf(absl::string_view gpu_key);

// A fraction of what the best shape reaches. A product is made of tiles, one a
// multiprocessor at a time: tiles that stand over the edge, and a last wave
// that doesn't fill all multiprocessors, are lost ("Matrix Multiplication
// Background User's Guide", NVIDIA, DU-09799-001, chapter 3); so is what a tile
// takes before and after its loop over k. Of cuBLAS's tiles and splits of k the
// best is taken.
double ProductFraction(const ProductShape& shape, int multiprocessors);

}  // namespace capstan

#endif  // CAPSTAN_TESTING_ROOFLINE_PRODUCT_MODEL_H_
