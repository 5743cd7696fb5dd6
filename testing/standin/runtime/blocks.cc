// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/blocks.h"

#include "testing/standin/runtime/graphs.h"
#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/memory.h"
#include "testing/standin/runtime/race_report.h"
#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

void Append(const Block& block, Work work) {
  if (LostWith() != cudaSuccess) return;
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  Stream* const stream =
      block.stream == nullptr && FindStream(&machine, nullptr) != nullptr
          ? machine.legacy[block.device]
          : FindStream(&machine, block.stream);
  if (stream == nullptr) return;
  // After its capture a graph writes to its memory whoever has it: what
  // belongs to the graph isn't watched then.
  if (block.of_graph && stream->capture == nullptr) return;
  work.cost.launches = 0;
  work.writes.push_back({block.begin, block.bytes});
  if (stream->capture != nullptr) {
    AddNode(stream, std::move(work), false);
    return;
  }
  OrderWithLegacy(&machine, stream);
  ++stream->works;
  Join(machine.host, &stream->clock);
  NoteAccesses(&machine, stream, work);
  if (!work.run) return;
  Item item;
  item.work = std::move(work);
  Push(&machine, stream, std::move(item));
}

}  // namespace

void BlockAllocated(const Block& block) {
  NoteBlocks(block.bytes);
  Work work;
  work.name = kAllocateBlock;
  Append(block, std::move(work));
}

void BlockFreed(const Block& block) {
  NoteBlocks(-block.bytes);
  Work work;
  work.name = kFreeBlock;
  if (!OnPaper()) {
    work.run = [begin = block.begin, bytes = block.bytes] {
      Poison(begin, bytes);
      return Progress::kDone;
    };
  }
  Append(block, std::move(work));
}

}  // namespace capstan::standin
