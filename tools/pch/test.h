// SPDX-License-Identifier: Apache-2.0
//
// Precompiled for tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/pch/ops.h"
