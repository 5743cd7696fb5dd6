// SPDX-License-Identifier: Apache-2.0
//
// What another rank, gone wrong, may have written into shared memory: the
// segment's header, its address, its state. Waits for it end, with an error or
// without.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cluster/comm/shm/shm_meeting.h"
#include "glog/logging.h"

namespace {

using capstan::ShmMeeting;
using capstan::ShmRankState;
using capstan::ShmSegment;

constexpr int kRanks = 2;

// As many of the bytes as fit.
void Overwrite(void* to, size_t size, absl::string_view bytes) {
  memcpy(to, bytes.data(), std::min(size, bytes.size()));
}

void Meet(absl::string_view bytes) {
  auto segment = ShmSegment::Create(kRanks);
  CHECK(segment.ok()) << segment.status();
  ShmRankState* const peer = (*segment)->state(1);
  // It lives as long as this process.
  auto meeting =
      ShmMeeting::Create(*std::move(segment), 0, {{0, getpid()}, {1, getpid()}},
                         std::chrono::milliseconds(0));
  CHECK(meeting.ok()) << meeting.status();
  Overwrite(static_cast<void*>(peer), sizeof(ShmRankState), bytes);
  for (const uint64_t blocks : {uint64_t{1}, ~uint64_t{0}}) {
    (*meeting)->Publish(capstan::kPosted, blocks);
    (*meeting)->Await(1, capstan::kPosted, blocks).IgnoreError();
    (*meeting)
        ->AwaitAny({{1, capstan::kReduced, blocks}, {1, capstan::kTaken, 1}})
        .IgnoreError();
    const int lagging = (*meeting)->Lagging(capstan::kTaken, blocks);
    CHECK(lagging >= -1 && lagging < kRanks);
  }
}

void OpenOver(absl::string_view bytes) {
  const auto made = ShmSegment::Create(kRanks);
  CHECK(made.ok()) << made.status();
  constexpr int64_t kHeader = capstan::SharedMemory::kHeaderBytes;
  Overwrite(reinterpret_cast<char*>((*made)->state(0)) - kHeader, kHeader,
            bytes);
  const auto opened = ShmSegment::Open((*made)->address(), kRanks);
  if (opened.ok()) (*opened)->slot(kRanks - 1, 3)[0] = 1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1,
                                size - 1);
  switch (data[0] % 3) {
    case 0:
      Meet(bytes);
      break;
    case 1:
      OpenOver(bytes);
      break;
    default:
      ShmSegment::Open(std::string(bytes), kRanks).status().IgnoreError();
  }
  return 0;
}
