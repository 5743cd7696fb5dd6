// SPDX-License-Identifier: Apache-2.0
//
// Ranges that the program names. This library is what NVTX loads as its tool
// (NVTX_INJECTION64_PATH).
#include <string>

#include "testing/standin/runtime/nvtx_abi.h"
#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

int PushA(const char* name) {
  PushRange(name == nullptr ? "" : name);
  return 0;
}

int PushEx(const NvtxAttributes* attributes) {
  // Registered strings are kept as they are given.
  const bool text =
      attributes != nullptr && (attributes->message_type == kNvtxAscii ||
                                attributes->message_type == kNvtxRegistered);
  return PushA(text ? static_cast<const char*>(attributes->message) : "");
}

int Pop() {
  PopRange();
  return 0;
}

int DomainPushEx(void*, const NvtxAttributes* attributes) {
  return PushEx(attributes);
}

int DomainPop(void*) { return Pop(); }

void* CreateDomain(const char*) {
  static int domain = 0;
  return &domain;
}

const void* RegisterString(void*, const char* text) {
  const auto* const kept = new std::string(text);  // as long as the process
  return kept->c_str();
}

template <typename Function>
void Set(NvtxTable table, unsigned size, unsigned id, Function function) {
  if (id < size && table[id] != nullptr) {
    *table[id] = reinterpret_cast<NvtxFunction>(function);
  }
}

}  // namespace
}  // namespace capstan::standin

extern "C" int InitializeInjectionNvtx2(
    capstan::standin::NvtxGetTable get_table) {
  using namespace capstan::standin;
  const auto* const callbacks =
      static_cast<const NvtxCallbacks*>(get_table(kNvtxCallbacksTable));
  if (callbacks == nullptr) return 0;
  NvtxTable table = nullptr;
  unsigned size = 0;
  if (callbacks->get_table(kNvtxCore, &table, &size) != 0) {
    Set(table, size, kNvtxRangePushA, &PushA);
    Set(table, size, kNvtxRangePushEx, &PushEx);
    Set(table, size, kNvtxRangePop, &Pop);
  }
  if (callbacks->get_table(kNvtxCore2, &table, &size) != 0) {
    Set(table, size, kNvtxDomainRangePushEx, &DomainPushEx);
    Set(table, size, kNvtxDomainRangePop, &DomainPop);
    Set(table, size, kNvtxDomainCreateA, &CreateDomain);
    Set(table, size, kNvtxDomainRegisterStringA, &RegisterString);
  }
  return 1;
}
