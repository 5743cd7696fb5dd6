// SPDX-License-Identifier: Apache-2.0
//
// Calls that fail because the setting `fault` wants it.
#include <atomic>

#include "testing/standin/device.h"
#include "testing/standin/runtime/report.h"
#include "testing/standin/runtime/settings.h"

namespace capstan::standin {
namespace {

std::atomic<int64_t> calls{0};  // of the kind that is to fail

}  // namespace

int64_t FaultCalls() { return TheSettings().fault.empty() ? -1 : calls.load(); }

bool IsFault(const std::string& kind) {
  const Settings& settings = TheSettings();
  return kind == settings.fault && ++calls == settings.fault_at;
}

}  // namespace capstan::standin
