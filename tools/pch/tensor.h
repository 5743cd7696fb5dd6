// SPDX-License-Identifier: Apache-2.0
//
// Precompiled for files that only pass tensors on.
#include <ATen/core/Tensor.h>

#include "tools/pch/plain.h"
