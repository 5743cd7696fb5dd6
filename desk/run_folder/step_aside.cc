// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/step_aside.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace capstan {

void StepAside() {
  // linux/ioprio.h, which glibc has no function for.
  constexpr int kWhoProcess = 1;
  constexpr int kIdleClass = 3 << 13;
  setpriority(PRIO_PROCESS, 0, 19);
  syscall(SYS_ioprio_set, kWhoProcess, 0, kIdleClass);
}

}  // namespace capstan
