// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_WITNESS_PRODUCT_CHECKER_H_
#define CAPSTAN_KERNELS_WITNESS_PRODUCT_CHECKER_H_

#include "kernels/context/witness.h"

namespace capstan::kernels {}

#endif  // CAPSTAN_KERNELS_WITNESS_PRODUCT_CHECKER_H_
