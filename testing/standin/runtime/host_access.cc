// SPDX-License-Identifier: Apache-2.0
//
// Host code that touches a device's memory, or pinned memory that a pending
// work uses, faults. The first is reported and the fault passed on, as it would
// end the process with a real device; the second is reported, and the process
// goes on, as it would there, too.
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstring>

#include "testing/standin/runtime/hooks.h"
#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/memory.h"
#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

struct sigaction previous;
thread_local int depth = 0;

bool Writes(void* context) {
  // Bit 1 of the page fault's error code.
  return (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) !=
         0;
}

std::string Where() {
  std::string text;
  int frames = 0;
  for (const std::string& frame : Stack()) {
    if (++frames > 8) break;
    text += (text.empty() ? " at " : " < ") + frame;
  }
  return text;
}

void PassOn(int number, siginfo_t* info, void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0 &&
      previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(number, info, context);
    return;
  }
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
    return;
  }
  signal(number, SIG_DFL);  // the instruction faults again
}

void OnFault(int number, siginfo_t* info, void* context) {
  const void* const at = info->si_addr;
  const bool write = Writes(context);
  if (IsPinned(at)) {
    const std::string pending = PendingAt(at, write);
    if (!pending.empty() && !OnDeviceThread()) {
      const std::string where = Where();
      ReportOnce("host_access", pending + where,
                 std::string("the host ") + (write ? "writes" : "reads") +
                     " pinned memory that " + pending + ": " + Describe(at) +
                     where);
    }
    return;
  }
  if (++depth > 1) {  // handlers that pass on to each other
    signal(number, SIG_DFL);
    return;
  }
  if (OnDevice(at)) {
    ReportFinding("host_access",
                  std::string("host code ") + (write ? "writes" : "reads") +
                      " memory of a device: " + Describe(at) + Where());
    FlushTrace();
  }
  PassOn(number, info, context);
  --depth;
}

}  // namespace

void WatchHostAccess() {
  struct sigaction current;
  sigaction(SIGSEGV, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == OnFault) {
    return;
  }
  previous = current;
  Stack();  // loads what the first unwinding loads
  struct sigaction action;
  std::memset(&action, 0, sizeof(action));
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace capstan::standin
