// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTING_FAULTS_CORE_OWN_H_
#define CAPSTAN_TESTING_FAULTS_CORE_OWN_H_

#include <dlfcn.h>
#include <glog/logging.h>

#include <cstring>

namespace capstan {

// The core's function that `ours`, a function or a non-virtual member function
// of a test's program, takes the place of.
template <typename Function>
Function CoreOwn(Function ours) {
  // A pointer to a member function begins with its address.
  void* address = nullptr;
  memcpy(&address, &ours, sizeof(address));
  Dl_info info;
  CHECK(dladdr(address, &info) != 0 && info.dli_saddr == address)
      << "a function of the test isn't exported";
  address = dlsym(RTLD_NEXT, info.dli_sname);
  CHECK(address != nullptr) << "the core has no " << info.dli_sname;
  memcpy(&ours, &address, sizeof(address));
  return ours;
}

}  // namespace capstan

#endif  // CAPSTAN_TESTING_FAULTS_CORE_OWN_H_
