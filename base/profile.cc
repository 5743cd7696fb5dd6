// SPDX-License-Identifier: Apache-2.0
#include "base/profile.h"

#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/profile_records.h"

namespace capstan {
namespace {

struct Threads {
  std::mutex mutex;
  std::vector<ThreadRecords*> all;
};

Threads& TheThreads() {
  // Leaked: threads may outlive main.
  static Threads* const threads = new Threads;
  return *threads;
}

ThreadRecords* NewThread() {
  Threads& threads = TheThreads();
  const std::lock_guard<std::mutex> lock(threads.mutex);
  threads.all.push_back(
      new ThreadRecords(static_cast<int>(threads.all.size())));
  return threads.all.back();
}

// begin_ns_ of a scope that only other tools see.
constexpr int64_t kNotRecorded = -1;

// Whether this thread is executing nodes of a backward.
bool InBackward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

std::atomic<bool> ProfileScope::enabled_{false};

std::atomic<bool> ProfileListeners::recording{false};
void (*ProfileListeners::push)(const char* name) = nullptr;
void (*ProfileListeners::pop)() = nullptr;

ThreadRecords& ThreadRecords::Mine() {
  thread_local ThreadRecords* const mine = NewThread();
  return *mine;
}

std::vector<ThreadRecords*> ThreadRecords::All() {
  Threads& threads = TheThreads();
  const std::lock_guard<std::mutex> lock(threads.mutex);
  return threads.all;
}

void ThreadRecords::Append(const ProfileRecord& record) {
  Chunk* const chunk = last_;
  const int count = chunk->count.load(std::memory_order_relaxed);
  chunk->records[count] = record;
  // The consumer deletes full chunks: don't touch it after the store.
  if (count + 1 == Chunk::kSize) last_ = chunk->next = new Chunk;
  chunk->count.store(count + 1, std::memory_order_release);
}

std::vector<ProfileRecord> ThreadRecords::Take() {
  std::vector<ProfileRecord> taken;
  for (;;) {
    const int count = first_->count.load(std::memory_order_acquire);
    taken.insert(taken.end(), first_->records + taken_,
                 first_->records + count);
    taken_ = count;
    if (count < Chunk::kSize) return taken;
    Chunk* const next = first_->next;
    delete first_;
    first_ = next;
    taken_ = 0;
  }
}

void ProfileScope::Begin(const char* name) {
  name_ = name;
  if (ProfileListeners::push != nullptr) ProfileListeners::push(name);
  if (!ProfileListeners::recording.load(std::memory_order_relaxed)) {
    begin_ns_ = kNotRecorded;
    return;
  }
  ThreadRecords& mine = ThreadRecords::Mine();
  if (mine.current == nullptr && mine.role() == ThreadRole::kOther &&
      InBackward()) {
    mine.set_role(ThreadRole::kAutograd);
  }
  outer_ = mine.current;
  mine.current = this;
  begin_ns_ = MonotonicNanoseconds();
}

void ProfileScope::End() {
  if (ProfileListeners::pop != nullptr) ProfileListeners::pop();
  if (begin_ns_ == kNotRecorded) return;
  const int64_t end_ns = MonotonicNanoseconds();
  const int64_t whole = end_ns - begin_ns_;
  if (outer_ != nullptr) outer_->inner_ns_ += whole;
  const ProfileScope* outermost = this;
  while (outermost->outer_ != nullptr) outermost = outermost->outer_;
  ThreadRecords& mine = ThreadRecords::Mine();
  mine.current = outer_;
  mine.Append({name_, outermost->name_, /*is_outermost=*/outer_ == nullptr,
               begin_ns_, end_ns, /*own_ns=*/whole - inner_ns_});
}

}  // namespace capstan
