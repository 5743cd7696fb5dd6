// SPDX-License-Identifier: Apache-2.0
//
// Precompiled for what hands tensors on.
#include <ATen/core/Tensor.h>

#include "tools/pch/plain.h"
