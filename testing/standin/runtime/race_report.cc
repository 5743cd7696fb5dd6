// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/race_report.h"

#include <set>

#include "testing/standin/runtime/memory.h"
#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

AccessMap& TheAccesses() {  // under the machine's mutex
  static AccessMap* const accesses = new AccessMap;
  return *accesses;
}

const std::string* Interned(const std::string& name) {
  static auto* const names = new std::set<std::string>;
  return &*names->insert(name).first;
}

const char* Verb(Touch touch) {
  switch (touch) {
    case Touch::kRead:
      return "reads";
    case Touch::kWrite:
      return "writes";
    case Touch::kAllocate:
      return "gets";
    case Touch::kFree:
      return "gives back";
  }
  return "";
}

std::string StreamName(int place) {
  for (const auto& stream : TheMachine().streams) {
    if (stream->place == place) {
      return "stream " + std::to_string(stream->id) + " of device " +
             std::to_string(stream->device);
    }
  }
  return "stream ?";
}

void Tell(const Conflict& conflict, const std::string& name, int place) {
  const std::string address =
      Describe(reinterpret_cast<const void*>(conflict.address));
  const std::string& earlier = *conflict.earlier.name;
  const std::string key = name + Verb(conflict.touch) + earlier +
                          Verb(conflict.earlier_touch) +
                          (conflict.freed ? "freed" : "");
  if (conflict.freed) {
    ReportOnce("use_after_free", key,
               name + " on " + StreamName(place) + " " + Verb(conflict.touch) +
                   " memory that the allocator has taken back (" + address +
                   ")");
    return;
  }
  const bool block = conflict.touch == Touch::kFree ||
                     conflict.touch == Touch::kAllocate ||
                     conflict.earlier_touch == Touch::kFree ||
                     conflict.earlier_touch == Touch::kAllocate;
  ReportOnce("race", key,
             name + " on " + StreamName(place) + " " + Verb(conflict.touch) +
                 " what " + earlier + " on " +
                 StreamName(conflict.earlier.stream) + " " +
                 Verb(conflict.earlier_touch) + ", and nothing orders them: " +
                 (block ? "an event or record_stream" : "an event") +
                 " is missing (" + address + ")");
}

bool Tracked(const Span& span) {
  if (span.begin == nullptr || span.bytes <= 0) return false;
  return PlaceOf(span.begin).memory != Memory::kPageable;
}

}  // namespace

const char kAllocateBlock[] = "allocator::allocate";
const char kFreeBlock[] = "allocator::free";

void NoteAccesses(Stream* stream, const Work& work, Clock* clock,
                  AccessMap* accesses) {
  const size_t place = stream->place;
  if (clock->size() <= place) clock->resize(place + 1, 0);
  Access access;
  access.stream = stream->place;
  access.time = ++(*clock)[place];
  access.name = Interned(work.name);
  auto note = [&](const Span& span, Touch touch) {
    if (!Tracked(span)) return;
    const auto begin = reinterpret_cast<uintptr_t>(span.begin);
    for (const Conflict& conflict :
         accesses->Note(begin, begin + static_cast<uint64_t>(span.bytes), touch,
                        access, *clock)) {
      Tell(conflict, work.name, stream->place);
    }
  };
  const Touch writes = work.name == kAllocateBlock ? Touch::kAllocate
                       : work.name == kFreeBlock   ? Touch::kFree
                                                   : Touch::kWrite;
  for (const Span& span : work.reads) note(span, Touch::kRead);
  for (const Span& span : work.writes) note(span, writes);
}

void NoteAccesses(Machine*, Stream* stream, const Work& work) {
  NoteAccesses(stream, work, &stream->clock, &TheAccesses());
}

void ForgetAccesses(uintptr_t begin, uintptr_t end) {
  Lock lock(TheMachine().mutex);
  TheAccesses().Forget(begin, end);
}

}  // namespace capstan::standin
