// SPDX-License-Identifier: Apache-2.0
//
// Precompiled for tests without tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/pch/plain.h"
