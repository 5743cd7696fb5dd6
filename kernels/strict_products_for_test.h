// SPDX-License-Identifier: Apache-2.0
//
// For tests that compare bits of products with other numbers of rows. On Intel
// float32 is MKL's (kernels/gemm), which promises them only in its strict mode,
// that of runs with train.deterministic. A program that includes this has it.
#ifndef CAPSTAN_KERNELS_STRICT_PRODUCTS_FOR_TEST_H_
#define CAPSTAN_KERNELS_STRICT_PRODUCTS_FOR_TEST_H_

#include <stdlib.h>

namespace capstan::kernels {

[[maybe_unused]] inline const int kStrictProducts =
    setenv("MKL_CBWR", "AUTO,STRICT", /*overwrite=*/0);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_STRICT_PRODUCTS_FOR_TEST_H_
