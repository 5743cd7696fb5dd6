// SPDX-License-Identifier: Apache-2.0
//
// Threads, locks and time.
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <new>

#include "testing/sim/globals.h"
#include "testing/sim/objects.h"
#include "testing/sim/real.h"

namespace capstan::sim {
namespace {

// The wall clock when a world begins: 2026-01-01.
constexpr time_t kEpoch = 1767225600;

Time NowOf(clockid_t clock) {
  World& world = *TheWorld();
  // So that who only looks at the clock gets on, too.
  world.Spend(20);
  // No clock begins at 0.
  Time now = world.now() + 1000 * kSecond;
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
    now = world.now() + kEpoch * kSecond + Mine()->host->clock_ahead;
  }
  return now;
}

timespec ToSpec(Time time) { return {time / kSecond, time % kSecond}; }
Time FromSpec(const timespec& spec) {
  return spec.tv_sec * kSecond + spec.tv_nsec;
}

// The world's time at which `clock` shows `spec`.
Time DeadlineOf(clockid_t clock, const timespec* spec) {
  if (spec == nullptr) return kNever;
  World& world = *TheWorld();
  return world.now() + std::max<Time>(0, FromSpec(*spec) - NowOf(clock));
}

// A mutex that is all zeros is free, as in libc.
bool TryLock(pthread_mutex_t* mutex) {
  auto& data = mutex->__data;
  const int me = static_cast<int>(Self()->id);
  if (data.__lock == 0) {
    data.__lock = 1;
    data.__owner = me;
    data.__count = 1;
    return true;
  }
  if ((data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE && data.__owner == me) {
    ++data.__count;
    return true;
  }
  return false;
}

int Lock(pthread_mutex_t* mutex, Time deadline) {
  World& world = *TheWorld();
  while (!TryLock(mutex)) {
    if (world.now() >= deadline) return ETIMEDOUT;
    world.BeginWait();
    world.addresses()[mutex].Add(Self());
    world.Block(deadline);
  }
  return 0;
}

void Unlock(pthread_mutex_t* mutex) {
  auto& data = mutex->__data;
  if (data.__count > 1) {
    --data.__count;
    return;
  }
  data.__lock = 0;
  data.__owner = 0;
  data.__count = 0;
  auto& addresses = TheWorld()->addresses();
  const auto found = addresses.find(mutex);
  if (found == addresses.end()) return;
  found->second.WakeOne();
  if (found->second.empty()) addresses.erase(found);
}

int WaitFor(pthread_cond_t* condition, pthread_mutex_t* mutex, Time deadline) {
  World& world = *TheWorld();
  Unlock(mutex);
  world.BeginWait();
  world.addresses()[condition].Add(Self());
  const bool late =
      deadline <= world.now() || world.Block(deadline) == Woken::kByTime;
  Lock(mutex, kNever);
  return late ? ETIMEDOUT : 0;
}

void WakeAt(void* address, bool all) {
  auto& addresses = TheWorld()->addresses();
  const auto found = addresses.find(address);
  if (found == addresses.end()) return;
  if (!all) {
    found->second.WakeOne();
    return;
  }
  found->second.WakeAll();
}

int64_t Futex(int* address, int operation, int value, const timespec* limit) {
  World& world = *TheWorld();
  const int what = operation & FUTEX_CMD_MASK;
  if (what == FUTEX_WAKE || what == FUTEX_WAKE_BITSET) {
    const auto found = world.addresses().find(address);
    int woken = 0;
    while (found != world.addresses().end() && woken < value &&
           found->second.WakeOne()) {
      ++woken;
    }
    return woken;
  }
  if (what != FUTEX_WAIT && what != FUTEX_WAIT_BITSET) return -ENOSYS;
  if (__atomic_load_n(address, __ATOMIC_SEQ_CST) != value) return -EAGAIN;
  Time deadline = kNever;
  if (limit != nullptr && what == FUTEX_WAIT) {
    deadline = world.now() + FromSpec(*limit);
  } else if (limit != nullptr) {
    deadline =
        DeadlineOf((operation & FUTEX_CLOCK_REALTIME) != 0 ? CLOCK_REALTIME
                                                           : CLOCK_MONOTONIC,
                   limit);
  }
  world.BeginWait();
  world.addresses()[address].Add(Self());
  switch (world.Block(deadline)) {
    case Woken::kByTime:
      return -ETIMEDOUT;
    case Woken::kBySignal:
      return -EINTR;
    case Woken::kByChange:
      break;
  }
  return 0;
}

Fiber* FiberOf(pthread_t thread) { return reinterpret_cast<Fiber*>(thread); }

}  // namespace
}  // namespace capstan::sim

using namespace capstan::sim;  // NOLINT: of the functions below

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  SIM_REAL(pthread_mutex_lock, mutex);
  return Lock(mutex, kNever);
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  SIM_REAL(pthread_mutex_trylock, mutex);
  return TryLock(mutex) ? 0 : EBUSY;
}
int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                            const timespec* until) noexcept {
  SIM_REAL(pthread_mutex_clocklock, mutex, clock, until);
  return Lock(mutex, DeadlineOf(clock, until));
}
int pthread_mutex_timedlock(pthread_mutex_t* mutex,
                            const timespec* until) noexcept {
  SIM_REAL(pthread_mutex_timedlock, mutex, until);
  return Lock(mutex, DeadlineOf(CLOCK_REALTIME, until));
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  SIM_REAL(pthread_mutex_unlock, mutex);
  Unlock(mutex);
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  SIM_REAL(pthread_cond_wait, condition, mutex);
  return WaitFor(condition, mutex, kNever);
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           clockid_t clock, const timespec* until) {
  SIM_REAL(pthread_cond_clockwait, condition, mutex, clock, until);
  return WaitFor(condition, mutex, DeadlineOf(clock, until));
}
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  SIM_REAL(pthread_cond_timedwait, condition, mutex, until);
  return WaitFor(condition, mutex, DeadlineOf(CLOCK_REALTIME, until));
}
int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  SIM_REAL(pthread_cond_signal, condition);
  WakeAt(condition, /*all=*/false);
  return 0;
}
int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  SIM_REAL(pthread_cond_broadcast, condition);
  WakeAt(condition, /*all=*/true);
  return 0;
}
int pthread_cond_destroy(pthread_cond_t* condition) noexcept {
  SIM_REAL(pthread_cond_destroy, condition);
  TheWorld()->addresses().erase(condition);
  return 0;
}

// One thread runs at a time, and none is switched from while it has one.
int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  SIM_REAL(pthread_rwlock_rdlock, lock);
  return 0;
}
int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  SIM_REAL(pthread_rwlock_wrlock, lock);
  return 0;
}
int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept {
  SIM_REAL(pthread_rwlock_unlock, lock);
  return 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                   void* (*body)(void*), void* argument) noexcept {
  SIM_REAL(pthread_create, thread, attributes, body, argument);
  Fiber* const fiber = TheWorld()->NewFiber(
      Mine(), [body, argument] { Self()->result = body(argument); });
  *thread = reinterpret_cast<pthread_t>(fiber);
  return 0;
}
int pthread_join(pthread_t thread, void** result) {
  SIM_REAL(pthread_join, thread, result);
  World& world = *TheWorld();
  Fiber* const fiber = FiberOf(thread);
  while (fiber->state != Fiber::kDead) {
    world.BeginWait();
    world.addresses()[fiber].Add(Self());
    world.Block(kNever);
  }
  if (result != nullptr) *result = fiber->result;
  return 0;
}
int pthread_detach(pthread_t thread) noexcept {
  SIM_REAL(pthread_detach, thread);
  return 0;
}
pthread_t pthread_self() noexcept {
  SIM_REAL(pthread_self);
  return reinterpret_cast<pthread_t>(Self());
}
int pthread_setname_np(pthread_t thread, const char* name) noexcept {
  SIM_REAL(pthread_setname_np, thread, name);
  return 0;
}
int pthread_getschedparam(pthread_t thread, int* policy,
                          sched_param* parameters) noexcept {
  SIM_REAL(pthread_getschedparam, thread, policy, parameters);
  *policy = SCHED_OTHER;
  *parameters = {};
  return 0;
}
void* pthread_getspecific(pthread_key_t key) noexcept {
  SIM_REAL(pthread_getspecific, key);
  const auto found = Self()->specific.find(key);
  return found == Self()->specific.end() ? nullptr
                                         : const_cast<void*>(found->second);
}
int pthread_setspecific(pthread_key_t key, const void* value) noexcept {
  SIM_REAL(pthread_setspecific, key, value);
  Self()->specific[key] = value;
  return 0;
}

int clock_gettime(clockid_t clock, timespec* out) noexcept {
  SIM_REAL(clock_gettime, clock, out);
  *out = ToSpec(NowOf(clock));
  return 0;
}
int gettimeofday(timeval* out, void* zone) noexcept {
  SIM_REAL(gettimeofday, out, zone);
  const Time now = NowOf(CLOCK_REALTIME);
  *out = {now / kSecond, now % kSecond / 1000};
  return 0;
}
time_t time(time_t* out) noexcept {
  SIM_REAL(time, out);
  const time_t now = NowOf(CLOCK_REALTIME) / kSecond;
  if (out != nullptr) *out = now;
  return now;
}
int nanosleep(const timespec* duration, timespec* left) {
  SIM_REAL(nanosleep, duration, left);
  World& world = *TheWorld();
  const Time until = world.now() + FromSpec(*duration);
  world.BeginWait();
  const bool cut = world.Block(until) == Woken::kBySignal;
  if (!cut || world.now() >= until) return 0;
  if (left != nullptr) *left = ToSpec(until - world.now());
  errno = EINTR;
  return -1;
}
int clock_nanosleep(clockid_t clock, int flags, const timespec* duration,
                    timespec* left) {
  SIM_REAL(clock_nanosleep, clock, flags, duration, left);
  timespec relative = *duration;
  if (flags == TIMER_ABSTIME) {
    relative = ToSpec(DeadlineOf(clock, duration) - TheWorld()->now());
  }
  return nanosleep(&relative, left) == 0 ? 0 : EINTR;
}
int usleep(useconds_t duration) {
  SIM_REAL(usleep, duration);
  const timespec spec = ToSpec(duration * kMicrosecond);
  return nanosleep(&spec, nullptr);
}
unsigned sleep(unsigned duration) {
  SIM_REAL(sleep, duration);
  const timespec spec = {static_cast<time_t>(duration), 0};
  nanosleep(&spec, nullptr);
  return 0;
}
int sched_yield() noexcept {
  SIM_REAL(sched_yield);
  TheWorld()->Pass(kMicrosecond);
  return 0;
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& one : a) one = va_arg(list, long);
  va_end(list);
  SIM_REAL(syscall, number, a[0], a[1], a[2], a[3], a[4], a[5]);
  switch (number) {
    case SYS_futex:
      return Result(Futex(reinterpret_cast<int*>(a[0]), static_cast<int>(a[1]),
                          static_cast<int>(a[2]),
                          reinterpret_cast<const timespec*>(a[3])));
    case SYS_gettid:
      return static_cast<long>(Self()->id);
    case SYS_pidfd_open: {
      Process* const process = TheWorld()->Find(static_cast<pid_t>(a[0]));
      if (process == nullptr || process->state == Process::kGone ||
          process->host != Mine()->host) {
        errno = ESRCH;
        return -1;
      }
      return NewDescriptor(std::make_shared<ProcessFile>(process));
    }
    default:
      errno = ENOSYS;
      return -1;
  }
}

}  // extern "C"

// Where nobody waits, a thread may be made to: here, where the subject
// allocates, since that it does often.
void* operator new(size_t bytes) {
  if (Self() != nullptr && IsSubject(__builtin_return_address(0))) {
    TheWorld()->MayPreempt();
  }
  void* const memory = malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }
