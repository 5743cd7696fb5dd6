// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include "testing/sim/globals.h"
#include "testing/sim/world.h"
