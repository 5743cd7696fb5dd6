// SPDX-License-Identifier: Apache-2.0
//
// Precompiled for what defines nodes of autograd.
#include <torch/csrc/autograd/custom_function.h>

#include "tools/pch/ops.h"
