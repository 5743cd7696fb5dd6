// SPDX-License-Identifier: Apache-2.0
//
// The device's thread: which stream's next item runs, and when.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <limits>
#include <random>
#include <thread>

#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/memory.h"
#include "testing/standin/runtime/report.h"
#include "testing/standin/runtime/settings.h"

namespace capstan::standin {
namespace {

// A host that enqueues more blocks, as with a real device's queues.
constexpr int64_t kMostPending = 16384;
// What the host waits for can't go on for so long: other streams may.
constexpr int64_t kStallNs = 1000000;
constexpr int64_t kFirstBackoffNs = 20000;
constexpr int64_t kLastBackoffNs = 500000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

thread_local bool on_device_thread = false;

const void* Key(uint64_t number) {
  return reinterpret_cast<const void*>(number);
}

bool Ready(const Item& item, int64_t now) {
  switch (item.kind) {
    case Item::kWait:
      return item.record->done;
    case Item::kRecord:
      return true;
    case Item::kWork:
      return now >= item.retry_ns;
  }
  return false;
}

// The stream whose next item must run first for `record` to be done.
Stream* NeededFor(const Record& record) {
  const Record* wanted = &record;
  while (true) {
    Stream* const stream = wanted->stream;
    if (stream->items.empty()) return stream;
    const Item& next = stream->items.front();
    if (next.kind != Item::kWait || next.record->done) return stream;
    wanted = next.record.get();
  }
}

// Streams whose next item may run now. *wake: when that may change by itself.
std::vector<Stream*> Candidates(Machine* machine, int64_t now, int64_t* wake) {
  const Settings& settings = TheSettings();
  *wake = kNever;
  std::vector<Stream*> ready;
  auto consider = [&](Stream* stream) {
    if (stream->items.empty()) return;
    const Item& next = stream->items.front();
    if (Ready(next, now)) {
      ready.push_back(stream);
    } else if (next.kind == Item::kWork) {
      *wake = std::min(*wake, next.retry_ns);
    }
  };
  bool all =
      settings.order == Order::kEager || machine->full || machine->credits > 0;
  if (machine->pending == 0) return ready;
  if (!machine->targets.empty()) {
    if (settings.order == Order::kRandom) all = true;
    if (!all) {
      bool awaited = false;
      for (const Record* target : machine->targets) {
        if (target->done) continue;
        awaited = true;
        consider(NeededFor(*target));
      }
      if (!ready.empty()) return ready;
      // A host that has what it waits for, but no processor yet, isn't stalled.
      const int64_t stalled = (awaited ? machine->progress_ns : now) + kStallNs;
      if (now >= stalled) all = true;
      if (!all) *wake = std::min(*wake, stalled);
    }
  } else if (!all) {
    const int64_t idle = machine->host_ns + settings.idle_ns;
    if (now >= idle) all = true;
    if (!all) *wake = std::min(*wake, idle);
  }
  if (all) {
    for (const auto& stream : machine->streams) consider(stream.get());
  }
  return ready;
}

// As late as possible: newer works overtake older ones of other streams.
Stream* Choose(const std::vector<Stream*>& ready) {
  static std::mt19937_64 random(TheSettings().seed);
  if (ready.empty()) return nullptr;
  auto number = [](const Stream* a, const Stream* b) {
    return a->items.front().number < b->items.front().number;
  };
  switch (TheSettings().order) {
    case Order::kEager:
      return *std::min_element(ready.begin(), ready.end(), number);
    case Order::kRandom:
      return ready[random() % ready.size()];
    case Order::kLate:
      break;
  }
  return *std::max_element(ready.begin(), ready.end(), number);
}

// Runs a work without the mutex. False: not yet.
bool RunWork(Item* item) {
  if (TheSettings().paper) return true;
  try {
    if (item->fails) {
      ReportFault("launch");
      LoseDevice(cudaErrorLaunchFailure);
      return true;
    }
    if (!item->work.run) return true;
    return item->work.run() == Progress::kDone;
  } catch (const std::exception& error) {
    ReportFinding("failed_work", item->work.name + ": " + error.what());
  } catch (...) {
    ReportFinding("failed_work", item->work.name);
  }
  LoseDevice(cudaErrorLaunchFailure);
  return true;
}

void Step(Machine* machine, Lock* lock, Stream* stream) {
  Item& item = stream->items.front();  // stays where it is: others only append
  if (item.kind == Item::kWork && LostWith() == cudaSuccess) {
    machine->running = true;
    lock->unlock();
    const bool done = RunWork(&item);
    lock->lock();
    machine->running = false;
    if (!done) {
      item.backoff_ns =
          std::clamp(2 * item.backoff_ns, kFirstBackoffNs, kLastBackoffNs);
      item.retry_ns = NowNs() + item.backoff_ns;
      machine->host_wakes.notify_all();
      return;
    }
  } else if (item.kind == Item::kRecord) {
    item.record->done = true;
    item.record->done_ns = NowNs();
  }
  if (item.kind == Item::kWork) Unprotect(item.work, Key(item.number));
  Item finished = std::move(item);
  stream->items.pop_front();
  --machine->pending;
  if (machine->credits > 0) --machine->credits;
  if (machine->pending <= kMostPending / 2) machine->full = false;
  machine->progress_ns = NowNs();
  machine->host_wakes.notify_all();
  // What the work holds may be freed only now, and may call CUDA.
  lock->unlock();
  finished = Item();
  lock->lock();
}

void Loop() {
  on_device_thread = true;
  pthread_setname_np(pthread_self(), "standin-gpu");
  Machine* const machine = &TheMachine();
  Lock lock(machine->mutex);
  while (!machine->stopping) {
    int64_t wake = kNever;
    Stream* const stream = Choose(Candidates(machine, NowNs(), &wake));
    if (stream != nullptr) {
      Step(machine, &lock, stream);
    } else if (wake == kNever) {
      FlushTrace();
      machine->device_wakes.wait(lock);
    } else {
      machine->device_wakes.wait_until(lock,
                                       std::chrono::steady_clock::time_point(
                                           std::chrono::nanoseconds(wake)));
    }
  }
}

// What is still queued when a process exits is never run.
void StopAtExit() {
  Machine* const machine = &TheMachine();
  Lock lock(machine->mutex);
  machine->stopping = true;
  if (on_device_thread) return;
  machine->host_wakes.wait_for(lock, std::chrono::seconds(5),
                               [&] { return !machine->running; });
  FlushTrace();
}

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool OnDeviceThread() { return on_device_thread; }

void NoteHost(Machine* machine) {
  if (!on_device_thread) machine->host_ns = NowNs();
}

void Push(Machine* machine, Stream* stream, Item item) {
  if (!machine->thread_started) {
    machine->thread_started = true;
    std::atexit(StopAtExit);
    std::thread(Loop).detach();
  }
  item.number = ++machine->items;
  if (item.kind == Item::kWork) {
    Protect(item.work, stream->id, Key(item.number));
  }
  stream->items.push_back(std::move(item));
  NoteHost(machine);
  // It sleeps without a limit only while nothing is pending.
  if (++machine->pending == 1) machine->device_wakes.notify_all();
}

std::shared_ptr<Record> Mark(Machine* machine, Stream* stream) {
  auto record = std::make_shared<Record>();
  record->stream = stream;
  record->works = machine->works;
  Join(machine->host, &stream->clock);
  record->clock = stream->clock;
  Item item;
  item.kind = Item::kRecord;
  item.record = record;
  Push(machine, stream, std::move(item));
  return record;
}

void WaitInStream(Machine* machine, Stream* stream,
                  const std::shared_ptr<Record>& record) {
  Join(record->clock, &stream->clock);
  if (record->done) return;
  Item item;
  item.kind = Item::kWait;
  item.record = record;
  Push(machine, stream, std::move(item));
}

void OrderWithLegacy(Machine* machine, Stream* stream) {
  Stream* const legacy = machine->legacy[stream->device];
  if (stream != legacy) {
    if (!stream->blocking || stream->seen_of_legacy == legacy->works) return;
    stream->seen_of_legacy = legacy->works;
    WaitInStream(machine, stream, Mark(machine, legacy));
    return;
  }
  for (const auto& other : machine->streams) {
    if (other.get() == legacy || other->device != legacy->device ||
        !other->blocking || other->seen_by_legacy == other->works) {
      continue;
    }
    other->seen_by_legacy = other->works;
    WaitInStream(machine, legacy, Mark(machine, other.get()));
  }
}

cudaError_t HostWait(Machine* machine, Lock* lock, const Record& record) {
  machine->targets.push_back(const_cast<Record*>(&record));
  machine->progress_ns = NowNs();
  machine->device_wakes.notify_all();
  machine->host_wakes.wait(*lock, [&] { return record.done; });
  auto& targets = machine->targets;
  targets.erase(std::find(targets.begin(), targets.end(), &record));
  Join(record.clock, &machine->host);
  NoteHost(machine);
  return LostWith();
}

void AfterEnqueue(Machine* machine, Lock* lock) {
  static std::mt19937_64 random(TheSettings().seed + 1);
  if (on_device_thread) return;
  if (TheSettings().order == Order::kRandom && random() % 2 == 0) {
    machine->credits += static_cast<int64_t>(random() % 8);
    machine->device_wakes.notify_all();
  }
  if (TheSettings().order == Order::kEager) {
    machine->device_wakes.notify_all();
    machine->host_wakes.wait(*lock, [&] {
      int64_t wake = 0;
      return !machine->running && Candidates(machine, NowNs(), &wake).empty();
    });
  }
  if (machine->pending > kMostPending) {
    machine->full = true;
    machine->device_wakes.notify_all();
    while (machine->full) {
      const int64_t before = machine->progress_ns;
      machine->host_wakes.wait_for(*lock, std::chrono::milliseconds(50));
      // Nothing can run before the host has called again.
      if (machine->progress_ns == before && !machine->running) break;
    }
  }
}

}  // namespace capstan::standin
