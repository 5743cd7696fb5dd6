// SPDX-License-Identifier: Apache-2.0
//
// A simulated cluster in one thread: clock, hosts, processes and their threads,
// which are fibers. What runs in it is not changed: the functions of libc that
// it calls are those of libc_*.cc, which ask the world instead of the kernel.
// Everything that could go one way or another is decided by the seed.
#ifndef CAPSTAN_TESTING_SIM_WORLD_H_
#define CAPSTAN_TESTING_SIM_WORLD_H_

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "testing/cuda/fiber.h"

namespace capstan::sim {

using Time = int64_t;  // nanoseconds since the world began
constexpr Time kMicrosecond = 1000;
constexpr Time kMillisecond = 1000 * kMicrosecond;
constexpr Time kSecond = 1000 * kMillisecond;
constexpr Time kNever = INT64_MAX;

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, most).
  int64_t Below(int64_t most) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(most));
  }
  // In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + Below(high - low + 1);
  }
  // True once in `n`.
  bool OneIn(int64_t n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

// How a wait ended.
enum class Woken { kByChange, kByTime, kBySignal };

class World;
class OpenFile;
struct Process;
struct Inode;

// A fiber's stack. A forked child has its parent's, at the same addresses: only
// the one that runs has its contents there.
struct Stack {
  char* base = nullptr;
  size_t bytes = 0;
  struct Fiber* resident = nullptr;
  int users = 0;
  char* top() const { return base + bytes; }
};

// A thread of a simulated process.
struct Fiber {
  enum State { kRunnable, kBlocked, kDead };

  uint64_t id = 0;
  Process* process = nullptr;
  State state = kRunnable;
  kernels::cuda::emulator::Context context;
  Stack* stack = nullptr;
  std::string saved;  // its stack's contents, while another's are there
  std::function<void()> body;

  // Each wait has a number; who wakes names the one that it knows of.
  uint64_t wait = 0;
  bool timed_out = false;
  // What its system call uses, which stays open until that returns.
  std::vector<std::shared_ptr<OpenFile>> held;
  uint64_t blocked_signals = 0;  // bit s - 1
  pid_t forked = -1;             // fork's result

  // Of the one real thread, swapped in.
  std::string thread_locals;
  void* exceptions[2] = {};
  int error = 0;
  std::unordered_map<unsigned, const void*> specific;

  void* result = nullptr;  // of pthread_join
};

// Fibers that wait for something to change.
class Watchers {
 public:
  void Add(Fiber* fiber);
  void WakeAll();
  // Returns whether there was one.
  bool WakeOne();
  bool empty() const { return list_.empty(); }

 private:
  std::deque<std::pair<Fiber*, uint64_t>> list_;
};

// Shared memory, at one address in all simulated processes.
struct Region {
  explicit Region(size_t bytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  char* data = nullptr;
  size_t bytes = 0;
};

struct Host {
  int index = 0;
  std::string name;      // "host3"
  uint32_t address = 0;  // 10.0.0.4, in host byte order
  bool up = true;
  bool paused = false;  // as a virtual machine is
  int boots = 0;
  Time clock_ahead = 0;  // of the wall clock
  int64_t disk_slowness = 1;
  Time disk_full_until = 0;
  int disk_errors = 0;  // of writes and syncs, to come
  int next_port = 32768;
  std::shared_ptr<Inode> root;
  std::string boot_id() const;
};

struct Process {
  enum State { kAlive, kStopped, kZombie, kGone };

  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  Host* host = nullptr;
  State state = kAlive;
  std::string name;  // for stories: "launcher of host2", "rank 3"
  int status = 0;    // as wait4 reports
  int death_signal = 0;
  uint64_t pending = 0;  // signals; bit s - 1
  struct sigaction actions[65] = {};
  std::map<std::string, std::string> variables;
  std::string folder = "/";
  std::vector<std::shared_ptr<OpenFile>> files;
  std::vector<Fiber*> fibers;
  std::map<void*, std::pair<std::shared_ptr<Region>, size_t>> maps;
  // The subject's variables (globals.h), while another process runs.
  std::vector<std::unique_ptr<char[]>> pages;
  Watchers ended;    // of pidfd and wait4
  Watchers signals;  // of signalfd
  // A fork's parent waits until the child has a stack of its own or is gone:
  // they share the heap.
  bool began = true;
  Watchers beginning;
  // What the scenario knows it by.
  int64_t tag = -1;

  bool alive() const { return state == kAlive || state == kStopped; }
};

struct Options {
  uint64_t seed = 0;
  int hosts = 1;
  bool tell = false;  // keep the lines of a story
  Time limit = 3600 * kSecond;
};

class World {
 public:
  explicit World(const Options& options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Runs until nothing is left to do, the limit, or Stop.
  void Run();
  void Stop() { stopped_ = true; }
  bool stopped() const { return stopped_; }

  Time now() const { return now_; }
  Random& random() { return random_; }
  Host& host(int index) { return *hosts_[index]; }
  int hosts() const { return static_cast<int>(hosts_.size()); }
  void At(Time time, std::function<void()> event);
  void After(Time delay, std::function<void()> event) {
    At(now_ + delay, std::move(event));
  }

  // Starts a process on a host, whose thread calls `main` and exits with what
  // it returns.
  Process* Spawn(int host, const std::string& name, std::function<int()> main);
  Process* Find(pid_t pid);
  const std::vector<std::unique_ptr<Process>>& processes() const {
    return processes_;
  }
  // `status`: as wait4 reports.
  void End(Process* process, int status, bool silently = false);
  void Signal(Process* process, int signal);
  void CrashHost(int host);
  void BootHost(int host);
  // The shared disk loses power, too.
  void CutDisk();
  void PauseHost(int host, bool paused);
  // Between two hosts, both ways.
  void Partition(int a, int b, Time until);
  bool Reachable(int from, int to) const;
  // Calls `lost` when, until `at`, `to` has not been reachable from `from`.
  Time unreachable_since(int from, int to) const;

  // Called when a process ends: before its files are closed.
  std::function<void(Process*)> on_end;
  // Called after each change of a folder of the shared disk.
  std::function<void(const std::string& path)> on_disk_change;

  // Story and trace. The hash of the trace tells whether two runs are the same.
  void Tell(const std::string& who, const std::string& what);
  void Tell(const Process* process, const std::string& what);
  bool tells() const { return options_.tell; }
  void Trace(uint64_t value) {
    trace_ = (trace_ ^ value) * 0x100000001b3u + (trace_ >> 47);
  }
  uint64_t trace() const { return trace_; }
  const std::vector<std::string>& story() const { return story_; }
  // Which functions a thread that waits is in, the innermost first.
  std::string Where(const Fiber* fiber) const;
  void TellWhere();  // of all
  // The first violation ends the run.
  void Violate(const std::string& what);
  const std::string& violation() const { return violation_; }
  int64_t switches() const { return switches_; }

  // For fibers, that is, for libc_*.cc.
  Fiber* NewFiber(Process* process, std::function<void()> body);
  // Waits for a watcher's wake, `deadline`, or a signal, whose handler has run
  // on return. Before it is added to watchers, a fiber begins a wait.
  Woken Block(Time deadline);
  void BeginWait();
  // After what may have stopped or ended the running process.
  void Yield();
  void Wake(Fiber* fiber, uint64_t wait);
  // Lets others run, and time pass.
  void Pass(Time delay);
  void Spend(Time time) { now_ += time; }
  // Now and then lets others run.
  void MayPreempt() {
    if (--until_preemption_ <= 0) Preempt();
  }
  pid_t Fork();
  [[noreturn]] void ExitFiber();
  [[noreturn]] void ExitProcess(int status);
  // Runs the handlers of pending signals; whether there were any.
  bool HandleSignals();
  bool ending() const { return ending_; }
  std::map<void*, Watchers>& addresses() { return addresses_; }
  std::shared_ptr<Inode> shared_root;

 private:
  struct Event {
    Time time;
    uint64_t order;
    std::function<void()> call;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  void Preempt();
  void Dispatch(Fiber* fiber);
  void MakeResident(Fiber* fiber);
  void SwapThread(Fiber* to);
  void CompleteFork(Fiber* parent);
  void SwitchOut();
  void Kill(Fiber* fiber);
  void MakeRunnable(Fiber* fiber);
  Stack* NewStack();
  void DropStack(Fiber* fiber);
  Process* NewProcess(int host, const std::string& name);
  void DefaultAction(Process* process, int signal);
  void NotifyParent(Process* process);
  void NoteReachability();

  const Options options_;
  Random random_;
  Time now_ = 0;
  bool stopped_ = false;
  bool ending_ = false;
  uint64_t order_ = 0;
  std::vector<Event> events_;  // a heap
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::unordered_map<pid_t, Process*> by_pid_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> runnable_;
  std::vector<std::unique_ptr<Stack>> stacks_;
  std::vector<Stack*> free_stacks_;
  kernels::cuda::emulator::Context scheduler_;
  Fiber* forking_ = nullptr;
  pid_t next_pid_ = 100;
  int64_t switches_ = 0;
  int64_t until_preemption_ = 1;
  std::map<std::pair<int, int>, Time> partitions_;
  std::map<std::pair<int, int>, Time> unreachable_since_;
  std::map<void*, Watchers> addresses_;
  Fiber* last_fiber_ = nullptr;      // that ran
  Process* last_process_ = nullptr;  // whose variables are in place
  uint64_t trace_ = 0xcbf29ce484222325u;
  std::vector<std::string> story_;
  std::string violation_;
};

// Null outside of worlds; Self() is null outside of fibers.
World* TheWorld();
Fiber* Self();
inline Process* Mine() { return Self()->process; }

// "12.345678 s".
std::string TimeText(Time time);

// Calls `body` on a stack of its own: a forked process's is where its parent's
// is, so that no other thread may look at objects there, nor `body`.
void OnOwnStack(std::function<void()> body);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTING_SIM_WORLD_H_
