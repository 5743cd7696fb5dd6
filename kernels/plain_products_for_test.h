// SPDX-License-Identifier: Apache-2.0
//
// For tests that count allocations. LibTorch's products of bfloat16 take memory
// by shape that no plan knows, up to 0.2 MiB with newer processors'
// instructions: much for a test's shapes. A program that includes this has
// none.
#ifndef CAPSTAN_KERNELS_PLAIN_PRODUCTS_FOR_TEST_H_
#define CAPSTAN_KERNELS_PLAIN_PRODUCTS_FOR_TEST_H_

#include <stdlib.h>

namespace capstan::kernels {

[[maybe_unused]] inline const int kPlainProducts =
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", /*overwrite=*/0);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_PLAIN_PRODUCTS_FOR_TEST_H_
