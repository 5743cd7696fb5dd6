// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/ranges.h"

#include <torch/csrc/profiler/stubs/base.h>

#include <cinttypes>
#include <cstdio>

#include "trainer/profile/profiler.h"

namespace capstan {

void StartRanges() {
  // Filled in by libtorch_cuda.
  StartRanges(
      [](const char* name) {
        torch::profiler::impl::cudaStubs()->rangePush(name);
      },
      [] { torch::profiler::impl::cudaStubs()->rangePop(); });
}

void StartRanges(void (*push)(const char* name), void (*pop)()) {
  ProfileListeners::pop = pop;
  ProfileListeners::push = push;
  Profiler::SwitchScopes();
}

Range::Range(const char* name, int64_t number)
    : on_(ProfileListeners::push != nullptr) {
  if (!on_) return;
  char text[64];
  std::snprintf(text, sizeof(text), "%s %" PRId64, name, number);
  ProfileListeners::push(text);
}

}  // namespace capstan
