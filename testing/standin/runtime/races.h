// SPDX-License-Identifier: Apache-2.0
//
// Vector clocks and who touched which bytes last: finds two accesses, one of
// them a write, that streams and events leave unordered. Exact: what it finds
// depends on the host's calls alone, not on when works happen to run.
// (C. Flanagan, S. Freund: FastTrack, PLDI 2009, over intervals of bytes.)
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_RACES_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_RACES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace capstan::standin {

// By stream: how many of its works come before.
using Clock = std::vector<uint64_t>;

// Makes *into the later of both, stream by stream.
void Join(const Clock& from, Clock* into);

enum class Touch {
  kRead,
  kWrite,
  kAllocate,  // a write, after which the bytes may be used
  kFree,      // a write, after which they may not
};

struct Access {
  int stream = 0;                     // the place of its own stream in clocks
  uint64_t time = 0;                  // its own place in that stream
  const std::string* name = nullptr;  // lives as long as the process
};

struct Conflict {
  Touch touch;  // of the new access
  Access earlier;
  Touch earlier_touch;
  bool freed = false;  // use of bytes that `earlier` freed, though ordered
  uintptr_t address = 0;
};

// Not thread-safe.
class AccessMap {
 public:
  // Notes that `access` touches [begin, end) with everything before `clock`
  // behind it. Returns the conflicts with earlier ones, one per earlier name.
  std::vector<Conflict> Note(uintptr_t begin, uintptr_t end, Touch touch,
                             const Access& access, const Clock& clock);

  // Forgets all about [begin, end).
  void Forget(uintptr_t begin, uintptr_t end);

 private:
  struct Cell {
    uintptr_t end = 0;
    Access write;  // name is null if none has been seen
    Touch write_touch = Touch::kWrite;
    std::vector<Access> reads;  // since the write, none before another
  };

  // Makes a cell begin at `at` if one lies across it.
  void Split(uintptr_t at);

  std::map<uintptr_t, Cell> cells_;  // by begin, disjoint
};

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_RACES_H_
