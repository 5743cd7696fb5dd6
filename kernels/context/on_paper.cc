// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/on_paper.h"

#include <atomic>
#include <utility>

namespace capstan {
namespace {

std::atomic<bool> on_paper{false};

// Of the thread that splits.
std::vector<int>& Noted() {
  static thread_local auto* const colors = new std::vector<int>;
  return *colors;
}

}  // namespace

void SetOnPaper(bool value) { on_paper = value; }
bool OnPaper() { return on_paper; }

void NoteSplit(int ranks, const std::function<int(int rank)>& color) {
  if (!OnPaper()) return;
  std::vector<int>& colors = Noted();
  colors.clear();
  for (int rank = 0; rank < ranks; ++rank) colors.push_back(color(rank));
}

std::vector<int> TakeNotedSplit() { return std::exchange(Noted(), {}); }

}  // namespace capstan
