// SPDX-License-Identifier: Apache-2.0
//
// For tests, in the place of libcapstan_tables.so: the one row tells what the
// process that reads tables may do. A file whose name has "slow" takes for
// ever.
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "datasets/tables/tables.h"

namespace {

// Beyond standard error, but for that of the socket to the parent.
int OpenFiles() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return -1;
  int count = 0;
  while (const dirent* entry = readdir(folder)) {
    const int number = atoi(entry->d_name);
    if (number > STDERR_FILENO && number != dirfd(folder)) ++count;
  }
  closedir(folder);
  return count;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) bool capstan_table_to_json(
    const capstan::TableJob* job, char*, size_t) {
  rlimit cpu;
  getrlimit(RLIMIT_CPU, &cpu);
  if (strstr(job->path, "slow") != nullptr) raise(SIGXCPU);
  const std::string row = "{\"seconds\":" + std::to_string(cpu.rlim_cur) +
                          ",\"files\":" + std::to_string(OpenFiles()) + "}\n";
  return job->write(job->context, row.data(), row.size());
}
