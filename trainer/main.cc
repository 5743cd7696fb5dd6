// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/commands.h"

int main(int argc, char** argv) { return capstan::Main(argc, argv); }
