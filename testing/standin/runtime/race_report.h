// SPDX-License-Identifier: Apache-2.0
//
// Races of works, found when they are enqueued and put into words.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_RACE_REPORT_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_RACE_REPORT_H_

#include "testing/standin/device.h"
#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/races.h"

namespace capstan::standin {

// With the machine's mutex held: gives the work its place in the stream's clock
// and checks what it touches against all that was enqueued before.
void NoteAccesses(Machine* machine, Stream* stream, const Work& work);

// The same in the map and with the clock of a capture.
void NoteAccesses(Stream* stream, const Work& work, Clock* clock,
                  AccessMap* accesses);

// What the caching allocator does with its blocks are works with these names,
// which write the block and nothing else.
extern const char kAllocateBlock[];
extern const char kFreeBlock[];

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_RACE_REPORT_H_
