// SPDX-License-Identifier: Apache-2.0
//
// Precompiled for files that compute with tensors. One header of ATen/ops
// brings in most of what all of them need.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>

#include "tools/pch/tensor.h"
