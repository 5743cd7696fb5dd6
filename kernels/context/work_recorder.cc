// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/work_recorder.h"

#include <atomic>

namespace capstan {
namespace {

std::atomic<WorkRecorder*> current{nullptr};
std::atomic<bool> is_repeated{false};

}  // namespace

WorkRecorder::~WorkRecorder() = default;

WorkRecorder* CurrentWorkRecorder() {
  return current.load(std::memory_order_acquire);
}

void SetWorkRecorder(WorkRecorder* recorder) {
  current.store(recorder, std::memory_order_release);
}

bool WorkIsRepeated() { return is_repeated.load(std::memory_order_relaxed); }

void SetWorkIsRepeated(bool repeated) {
  is_repeated.store(repeated, std::memory_order_relaxed);
}

}  // namespace capstan
