// SPDX-License-Identifier: Apache-2.0
//
// Ranges that the program names. This library is what NVTX loads as its tool
// (NVTX_INJECTION64_PATH).
#include <nvtx3/nvToolsExt.h>

#include <string>

#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

int Push(const char* name) {
  PushRange(name == nullptr ? "" : name);
  return 0;
}

int PushA(const char* name) { return Push(name); }

// Registered strings are kept as they are given.
const char* NameIn(const nvtxEventAttributes_t* attributes) {
  if (attributes == nullptr) return "";
  switch (attributes->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII:
      return attributes->message.ascii;
    case NVTX_MESSAGE_TYPE_REGISTERED:
      return reinterpret_cast<const char*>(attributes->message.registered);
    default:
      return "";
  }
}

int PushEx(const nvtxEventAttributes_t* attributes) {
  return Push(NameIn(attributes));
}

int Pop() {
  PopRange();
  return 0;
}

int DomainPushEx(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  return PushEx(attributes);
}

int DomainPop(nvtxDomainHandle_t) { return Pop(); }

nvtxDomainHandle_t CreateDomain(const char*) {
  static int domain = 0;
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}

nvtxStringHandle_t RegisterString(nvtxDomainHandle_t, const char* text) {
  const auto* const kept = new std::string(text);  // as long as the process
  return reinterpret_cast<nvtxStringHandle_t>(const_cast<char*>(kept->c_str()));
}

template <typename Function>
void Set(NvtxFunctionTable table, unsigned size, unsigned id,
         Function function) {
  if (id < size && table[id] != nullptr) {
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
  }
}

}  // namespace
}  // namespace capstan::standin

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  using namespace capstan::standin;
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(
      get_table(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr) return 0;
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) !=
      0) {
    Set(table, size, NVTX_CBID_CORE_RangePushA, &PushA);
    Set(table, size, NVTX_CBID_CORE_RangePushEx, &PushEx);
    Set(table, size, NVTX_CBID_CORE_RangePop, &Pop);
  }
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) !=
      0) {
    Set(table, size, NVTX_CBID_CORE2_DomainRangePushEx, &DomainPushEx);
    Set(table, size, NVTX_CBID_CORE2_DomainRangePop, &DomainPop);
    Set(table, size, NVTX_CBID_CORE2_DomainCreateA, &CreateDomain);
    Set(table, size, NVTX_CBID_CORE2_DomainRegisterStringA, &RegisterString);
  }
  return 1;
}
