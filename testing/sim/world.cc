// SPDX-License-Identifier: Apache-2.0
#include "testing/sim/world.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "testing/sim/disk.h"
#include "testing/sim/globals.h"

namespace capstan::sim {
namespace {

using kernels::cuda::emulator::Context;

constexpr size_t kStackBytes = 512 << 10;

World* the_world = nullptr;
Fiber* self = nullptr;

// Below it nothing of the stack is in use.
char* StackPointer(const Fiber* fiber) {
  return static_cast<char*>(fiber->context.stack_pointer);
}

void FiberMain() {
  self->body();
  the_world->ExitFiber();
}

}  // namespace

World* TheWorld() { return the_world; }
Fiber* Self() { return self; }

void Watchers::Add(Fiber* fiber) {
  if (list_.size() > 16) {
    list_.erase(std::remove_if(list_.begin(), list_.end(),
                               [](const auto& one) {
                                 return one.first->wait != one.second;
                               }),
                list_.end());
  }
  list_.emplace_back(fiber, fiber->wait);
}

void Watchers::WakeAll() {
  const auto all = std::move(list_);
  list_.clear();
  for (const auto& [fiber, wait] : all) the_world->Wake(fiber, wait);
}

bool Watchers::WakeOne() {
  while (!list_.empty()) {
    const auto [fiber, wait] = list_.front();
    list_.pop_front();
    if (fiber->wait != wait || fiber->state != Fiber::kBlocked) continue;
    the_world->Wake(fiber, wait);
    return true;
  }
  return false;
}

Region::Region(size_t size) : bytes(size) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) abort();
  data = static_cast<char*>(memory);
}

Region::~Region() {
  // Not the one of libc_process.cc.
  static const auto real =
      reinterpret_cast<decltype(&munmap)>(dlsym(RTLD_NEXT, "munmap"));
  real(data, bytes);
}

std::string Host::boot_id() const {
  char text[64];
  snprintf(text, sizeof(text), "00000000-0000-4000-8000-%06x%06x", index,
           boots);
  return text;
}

std::string TimeText(Time time) {
  char text[64];
  snprintf(text, sizeof(text), "%12.6f s", static_cast<double>(time) / 1e9);
  return text;
}

World::World(const Options& options)
    : options_(options), random_(options.seed) {
  the_world = this;
  shared_root = NewFolder();
  for (int i = 0; i < options.hosts; ++i) {
    auto host = std::make_unique<Host>();
    host->index = i;
    host->name = "host" + std::to_string(i);
    host->address = (10u << 24) + static_cast<uint32_t>(i) + 1;
    host->root = NewFolder();
    hosts_.push_back(std::move(host));
  }
}

World::~World() {
  ending_ = true;
  for (const auto& process : processes_) {
    process->files.clear();
    process->maps.clear();
  }
  for (const auto& fiber : fibers_) fiber->held.clear();
  events_.clear();
  for (const auto& stack : stacks_) munmap(stack->base, stack->bytes);
  hosts_.clear();
  shared_root.reset();
  the_world = nullptr;
}

void World::At(Time time, std::function<void()> event) {
  events_.push_back({std::max(time, now_), ++order_, std::move(event)});
  std::push_heap(events_.begin(), events_.end());
}

void World::Run() {
  std::string own;
  std::string none;
  SwapThreadLocals(&own, &none);
  At(options_.limit, [this] { Stop(); });
  while (!stopped_) {
    if (!events_.empty() &&
        (runnable_.empty() || events_.front().time <= now_)) {
      std::pop_heap(events_.begin(), events_.end());
      const Event event = std::move(events_.back());
      events_.pop_back();
      now_ = std::max(now_, event.time);
      event.call();
      continue;
    }
    if (runnable_.empty()) break;
    const size_t index = random_.Below(static_cast<int64_t>(runnable_.size()));
    Fiber* const fiber = runnable_[index];
    runnable_[index] = runnable_.back();
    runnable_.pop_back();
    Dispatch(fiber);
  }
  SwapThreadLocals(nullptr, &own);
}

void World::MakeRunnable(Fiber* fiber) {
  fiber->state = Fiber::kRunnable;
  // A stopped process's fibers go on once it is continued.
  const Process& process = *fiber->process;
  if (process.state == Process::kAlive && !process.host->paused) {
    runnable_.push_back(fiber);
  }
}

void World::MakeResident(Fiber* fiber) {
  Stack* const stack = fiber->stack;
  if (stack->resident == fiber) return;
  if (Fiber* const other = stack->resident) {
    other->saved.assign(StackPointer(other), stack->top());
  }
  if (!fiber->saved.empty()) {
    memcpy(StackPointer(fiber), fiber->saved.data(), fiber->saved.size());
  }
  stack->resident = fiber;
}

void World::SwapThread(Fiber* to) {
  if (last_fiber_ == to) return;
  SwapThreadLocals(
      last_fiber_ == nullptr ? nullptr : &last_fiber_->thread_locals,
      &to->thread_locals);
  last_fiber_ = to;
  if (last_process_ == to->process) return;
  // The first of a world finds what the last world has left.
  SwapGlobals(last_process_ == nullptr ? nullptr : &last_process_->pages,
              &to->process->pages);
  last_process_ = to->process;
}

void World::Dispatch(Fiber* fiber) {
  ++switches_;
  Trace(fiber->id);
  now_ += 200 + random_.Below(2000);
  SwapThread(fiber);
  MakeResident(fiber);
  self = fiber;
  errno = fiber->error;
  kernels::cuda::emulator::Switch(&scheduler_, &fiber->context);
  self = nullptr;
  if (forking_ != nullptr) CompleteFork(std::exchange(forking_, nullptr));
  if (fiber->state == Fiber::kDead) DropStack(fiber);
}

void World::SwitchOut() {
  Fiber* const me = self;
  me->error = errno;
  kernels::cuda::emulator::Switch(&me->context, &scheduler_);
  errno = self->error;
}

void World::BeginWait() { ++self->wait; }

Woken World::Block(Time deadline) {
  if (HandleSignals()) return Woken::kBySignal;
  Fiber* const me = self;
  me->timed_out = false;
  me->state = Fiber::kBlocked;
  if (deadline != kNever) {
    At(deadline, [this, me, wait = me->wait] {
      if (me->wait != wait || me->state != Fiber::kBlocked) return;
      me->timed_out = true;
      ++me->wait;
      MakeRunnable(me);
    });
  }
  SwitchOut();
  const Woken woken = me->timed_out ? Woken::kByTime : Woken::kByChange;
  return HandleSignals() ? Woken::kBySignal : woken;
}

void World::Yield() {
  if (self->process->state == Process::kAlive && !self->process->host->paused) {
    return;
  }
  SwitchOut();
}

void World::Wake(Fiber* fiber, uint64_t wait) {
  if (fiber->wait != wait || fiber->state != Fiber::kBlocked) return;
  ++fiber->wait;
  MakeRunnable(fiber);
}

void World::Pass(Time delay) {
  const Time until = now_ + delay;
  while (now_ < until) {
    BeginWait();
    Block(until);
  }
}

void World::Preempt() {
  until_preemption_ = random_.Between(1, 400);
  Pass(random_.Below(20 * kMicrosecond));
}

Stack* World::NewStack() {
  if (free_stacks_.empty()) {
    auto stack = std::make_unique<Stack>();
    void* const memory =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    mprotect(memory, 4096, PROT_NONE);
    stack->base = static_cast<char*>(memory);
    stack->bytes = kStackBytes;
    free_stacks_.push_back(stack.get());
    stacks_.push_back(std::move(stack));
  }
  Stack* const stack = free_stacks_.back();
  free_stacks_.pop_back();
  stack->users = 1;
  stack->resident = nullptr;
  return stack;
}

void World::DropStack(Fiber* fiber) {
  Stack* const stack = std::exchange(fiber->stack, nullptr);
  if (stack == nullptr) return;
  if (stack->resident == fiber) stack->resident = nullptr;
  fiber->saved.clear();
  fiber->saved.shrink_to_fit();
  if (--stack->users == 0) free_stacks_.push_back(stack);
}

Fiber* World::NewFiber(Process* process, std::function<void()> body) {
  auto made = std::make_unique<Fiber>();
  Fiber* const fiber = made.get();
  fiber->id = fibers_.size() + 1;
  fiber->process = process;
  fiber->body = std::move(body);
  fiber->stack = NewStack();
  fiber->stack->resident = fiber;
  kernels::cuda::emulator::Prepare(&fiber->context, fiber->stack->base,
                                   fiber->stack->bytes, FiberMain);
  if (self != nullptr) fiber->blocked_signals = self->blocked_signals;
  fibers_.push_back(std::move(made));
  process->fibers.push_back(fiber);
  MakeRunnable(fiber);
  return fiber;
}

pid_t World::Fork() {
  forking_ = self;
  MakeRunnable(self);
  SwitchOut();
  if (self->forked == 0) return 0;
  const pid_t pid = self->forked;
  while (!Find(pid)->began) {
    BeginWait();
    Find(pid)->beginning.Add(self);
    Block(kNever);
  }
  return pid;
}

void World::CompleteFork(Fiber* parent) {
  Process& from = *parent->process;
  Process* const process = NewProcess(from.host->index, from.name + "'s child");
  process->parent = from.pid;
  process->group = from.group;
  memcpy(process->actions, from.actions, sizeof(from.actions));
  process->variables = from.variables;
  process->folder = from.folder;
  process->files = from.files;
  process->maps = from.maps;
  process->pages = CopyGlobals();
  process->tag = from.tag;
  process->began = false;
  auto made = std::make_unique<Fiber>();
  Fiber* const child = made.get();
  child->id = fibers_.size() + 1;
  child->process = process;
  child->context = parent->context;
  child->stack = parent->stack;
  ++child->stack->users;
  child->saved.assign(StackPointer(parent), parent->stack->top());
  child->blocked_signals = parent->blocked_signals;
  SwapThreadLocals(&child->thread_locals, &child->thread_locals);
  child->specific = parent->specific;
  parent->forked = process->pid;
  child->forked = 0;
  fibers_.push_back(std::move(made));
  process->fibers.push_back(child);
  MakeRunnable(child);
}

void World::Kill(Fiber* fiber) {
  if (fiber->state == Fiber::kDead) return;
  if (fiber->state == Fiber::kRunnable) {
    runnable_.erase(std::remove(runnable_.begin(), runnable_.end(), fiber),
                    runnable_.end());
  }
  fiber->state = Fiber::kDead;
  ++fiber->wait;
  fiber->held.clear();
  if (fiber != self) DropStack(fiber);
}

void World::ExitFiber() {
  Fiber* const me = self;
  Kill(me);
  addresses_[me].WakeAll();  // pthread_join
  addresses_.erase(me);
  SwitchOut();
  abort();
}

void World::ExitProcess(int status) {
  End(self->process, status);
  SwitchOut();
  abort();
}

void World::Tell(const std::string& who, const std::string& what) {
  if (!options_.tell) return;
  story_.push_back(TimeText(now_) + "  " + who + ": " + what);
}

void World::Tell(const Process* process, const std::string& what) {
  if (!options_.tell) return;
  Tell(process->host->name + ", " + process->name + " (" +
           std::to_string(process->pid) + ")",
       what);
}

void World::Violate(const std::string& what) {
  if (violation_.empty()) {
    violation_ = what;
    Tell("INVARIANT", what);
    TellWhere();
  }
  Stop();
}

void OnOwnStack(std::function<void()> body) {
  Fiber* const fiber = the_world->NewFiber(self->process, std::move(body));
  self->process->began = true;
  self->process->beginning.WakeAll();
  while (fiber->state != Fiber::kDead) {
    the_world->BeginWait();
    the_world->addresses()[fiber].Add(self);
    the_world->Block(kNever);
  }
}

}  // namespace capstan::sim
