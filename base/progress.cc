// SPDX-License-Identifier: Apache-2.0
#include "base/progress.h"

#include <atomic>

namespace capstan {
namespace {

std::atomic<uint64_t> count{0};

}  // namespace

void CountProgress() { count.fetch_add(1, std::memory_order_relaxed); }

uint64_t ProgressCount() { return count.load(std::memory_order_relaxed); }

}  // namespace capstan
