// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/recompute.h"

#include <atomic>

namespace capstan {
namespace {

std::atomic<bool> g_recomputes_mlp{false};

}  // namespace

bool RecomputesMlp() { return g_recomputes_mlp; }

void SetRecomputesMlp(bool recomputes) { g_recomputes_mlp = recomputes; }

}  // namespace capstan
