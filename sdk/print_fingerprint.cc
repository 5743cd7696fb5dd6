// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "plugins/sdk/plugin.h"

int main() { std::fputs(CAPSTAN_FINGERPRINT, stdout); }
