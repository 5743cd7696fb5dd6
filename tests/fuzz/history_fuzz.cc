// SPDX-License-Identifier: Apache-2.0
//
// An HDF5 file of learning histories. What libhdf5 1.10 itself reads beyond its
// buffers, which libFuzzer finds in minutes, is a child's end, not a finding.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "tests/fuzz/input_folder.h"

// With AddressSanitizer: what it calls before it ends the process.
extern "C" void __sanitizer_set_death_callback(void (*callback)())
    __attribute__((weak));

// libFuzzer would report the child's death as its own.
static void InChild() {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM}) {
    ::signal(signal, SIG_DFL);
  }
  close(STDERR_FILENO);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback([] { _exit(1); });
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using capstan::darkroom::HistoryReader;
  static const capstan::InputFolder folder;
  static const int forks = pthread_atfork(nullptr, nullptr, &InChild);
  CHECK_EQ(forks, 0);
  const std::string path = folder.Write(
      "a.hdf5", absl::string_view(reinterpret_cast<const char*>(data), size));
  const auto reader = HistoryReader::Open(path);
  if (!reader.ok()) return 0;
  const capstan::darkroom::Darkroom rooms(capstan::darkroom::Variant::kGoals,
                                          {});
  (*reader)->CheckTasks(rooms).IgnoreError();
  for (const int task : (*reader)->tasks()) {
    const auto history = (*reader)->Read(task, rooms.spec());
    if (!history.ok()) continue;
    CHECK_EQ(static_cast<int64_t>(history->actions.size()),
             history->steps * history->streams);
  }
  return 0;
}
