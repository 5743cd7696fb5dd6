// SPDX-License-Identifier: Apache-2.0
//
// Precompiled for files that define autograd nodes.
#include <torch/csrc/autograd/custom_function.h>

#include "tools/pch/ops.h"
