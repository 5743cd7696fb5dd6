// SPDX-License-Identifier: Apache-2.0
//
// The state of the stand-in runtime: streams and what is queued in them. One
// mutex guards all of it; the device's thread runs works without holding it.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_MACHINE_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_MACHINE_H_

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "testing/standin/device.h"
#include "testing/standin/runtime/races.h"

namespace capstan::standin {

struct Capture;
struct Stream;

// A place in a stream, which the device reaches when all before it is done.
struct Record {
  Stream* stream = nullptr;
  bool done = false;
  int64_t done_ns = 0;  // when, by the steady clock
  uint64_t works = 0;   // Machine::works before it
  uint64_t asked = 0;   // Machine::works when the host last asked for it
  int asked_again = 0;  // so often without having enqueued anything
  Clock clock;          // what is done with it
};

struct Item {
  enum Kind { kWork, kRecord, kWait } kind = kWork;
  Work work;
  std::shared_ptr<Record> record;  // of kRecord and kWait
  uint64_t number = 0;             // in the order of the host's calls
  int64_t retry_ns = 0;            // after kNotYet: not before
  int64_t backoff_ns = 0;
  bool fails = false;  // the setting `fault` wants it
};

struct Stream {
  int device = 0;  // among the visible ones
  int id = 0;      // in the report; 0 is the legacy stream of its device
  int place = 0;   // in clocks
  bool legacy = false;
  bool blocking = true;  // ordered with the legacy stream
  bool destroyed = false;
  int priority = 0;
  unsigned flags = 0;
  std::deque<Item> items;
  Clock clock;
  // Works so far, and how many of them the legacy stream (or, of the legacy
  // stream, `seen_by`'s stream) is ordered after.
  uint64_t works = 0;
  uint64_t seen_by_legacy = 0;
  uint64_t seen_of_legacy = 0;
  // While it is captured: to what, after which of its nodes, and with which
  // clock among the capture's streams.
  std::shared_ptr<Capture> capture;
  std::vector<int> frontier;
  Clock capture_clock;
};

struct Event {
  unsigned flags = 0;
  int device = 0;
  std::shared_ptr<Record> record;  // null before the first
  // Of a record in a captured stream.
  std::shared_ptr<Capture> capture;
  std::vector<int> frontier;
  Clock capture_clock;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable device_wakes;  // there may be something to run
  std::condition_variable host_wakes;    // something is done
  std::vector<std::unique_ptr<Stream>> streams;  // never removed
  std::vector<Stream*> legacy;                   // by device
  std::vector<Record*> targets;                  // what host threads wait for
  Clock host;               // what the host knows to be done
  uint64_t items = 0;       // enqueued so far
  uint64_t works = 0;       // of them, launches and copies
  int64_t pending = 0;      // items not yet done
  bool running = false;     // the device's thread is in a work
  bool full = false;        // too much is pending: run some
  int64_t credits = 0;      // of order=random: works that may run
  int64_t host_ns = 0;      // the host's last call
  int64_t progress_ns = 0;  // the device's last finished item
  bool thread_started = false;
  bool stopping = false;  // the process exits
  int next_place = 0;
};

// Of this process; not before the fork of one that uses it.
Machine& TheMachine();

using Lock = std::unique_lock<std::mutex>;

int64_t NowNs();

// What every call does first: 0, or the error that it must return (a lost
// device; a child of a process that has used CUDA).
cudaError_t Begin();

// The same of the calls that go on after the device is lost: which device is
// current, and how many there are. (LibTorch's guards ask while an exception
// unwinds the stack.)
cudaError_t BeginThoughLost();

// Keeps the error for cudaGetLastError of this thread, and returns it.
cudaError_t Result(cudaError_t error);

// From now on each call returns the error.
void LoseDevice(cudaError_t error);
cudaError_t LostWith();  // cudaSuccess if it isn't

// Whether the process has used the (visible) device: cudaSetDevice, or more.
bool HasContext(int device);

// The calling thread's device, among the visible ones.
int CurrentDevice();

// The device that some thread has set last, by which the process is known.
int LastDeviceSet();

// Null if it is none.
Stream* FindStream(Machine* machine, void* handle);

// The stream of a new handle.
Stream* NewStream(Machine* machine, int device, unsigned flags, int priority);

// --- scheduler.cc: all with the mutex held ---

// Appends, and starts the device's thread if there is none.
void Push(Machine* machine, Stream* stream, Item item);

// The place behind all that is in the stream.
std::shared_ptr<Record> Mark(Machine* machine, Stream* stream);

// Makes what follows in the stream wait.
void WaitInStream(Machine* machine, Stream* stream,
                  const std::shared_ptr<Record>& record);

// Orders the stream with the legacy one as CUDA does, before its next item.
void OrderWithLegacy(Machine* machine, Stream* stream);

// Blocks the host until the record is done or the device is lost.
cudaError_t HostWait(Machine* machine, Lock* lock, const Record& record);

// After an enqueue: gives the device its turn, as the setting `order` says.
void AfterEnqueue(Machine* machine, Lock* lock);

// The host has called.
void NoteHost(Machine* machine);

// True in the device's thread.
bool OnDeviceThread();

// --- streams.cc ---

// What kind of work is appended, for the trace.
struct Copy {
  const char* direction = nullptr;  // "h2d", ..
  int64_t bytes = 0;
};

// Appends a work: checks what it touches, counts it, and pushes it (or adds it
// to a graph). `copy`: its line in the trace; null for a launch.
cudaError_t Submit(Machine* machine, Lock* lock, Stream* stream, Work work,
                   const Copy* copy);

// Forgets who touched [begin, end): it is given back.
void ForgetAccesses(uintptr_t begin, uintptr_t end);

// Waits for all of a device; -1: of all.
cudaError_t WaitForDevice(int device, const char* why);

// Waits for a stream.
cudaError_t WaitForStream(void* stream, const char* why);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_MACHINE_H_
