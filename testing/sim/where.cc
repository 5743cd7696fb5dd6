// SPDX-License-Identifier: Apache-2.0
//
// Where threads that wait stand, for stories.
#include <cxxabi.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include <string>

#include "testing/sim/world.h"

namespace capstan::sim {
namespace {

// "capstan::Meet"; "" if the address is in no named function.
std::string FunctionAt(uintptr_t address) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(address), &info) == 0) return "";
  if (info.dli_sname == nullptr) return "";
  int failed = 0;
  char* const plain =
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &failed);
  std::string name = failed == 0 ? plain : info.dli_sname;
  free(plain);
  constexpr char kUnnamed[] = "(anonymous namespace)::";
  for (size_t i; (i = name.find(kUnnamed)) != std::string::npos;) {
    name.erase(i, sizeof(kUnnamed) - 1);
  }
  const size_t arguments = name.find('(');
  if (failed == 0 && arguments != std::string::npos) name.resize(arguments);
  return name;
}

}  // namespace

std::string World::Where(const Fiber* fiber) const {
  if (fiber->stack == nullptr) return "";
  // As Switch has pushed them.
  const char* const top = fiber->stack->top();
  const bool resident = fiber->stack->resident == fiber;
  const char* const sp = static_cast<const char*>(fiber->context.stack_pointer);
  const auto at = [&](const char* place) {
    const char* const from =
        resident ? place : fiber->saved.data() + (place - sp);
    return *reinterpret_cast<const uintptr_t*>(from);
  };
  std::string text;
  uintptr_t frame = at(sp + 5 * 8);
  for (int depth = 0; depth < 40; ++depth) {
    const char* const place = reinterpret_cast<const char*>(frame);
    if (place < sp || place + 16 > top) break;
    const std::string name = FunctionAt(at(place + 8));
    // Of the subject only.
    if (name.rfind("capstan::", 0) == 0 &&
        name.find("capstan::sim") == std::string::npos &&
        name.find("Handler") == std::string::npos) {
      text += (text.empty() ? "" : " < ") + name.substr(9);
    }
    frame = at(place);
  }
  return text;
}

void World::TellWhere() {
  if (!options_.tell) return;
  for (const auto& fiber : fibers_) {
    if (fiber->state == Fiber::kDead || !fiber->process->alive()) continue;
    Tell(fiber->process, "thread " + std::to_string(fiber->id) + " waits in " +
                             Where(fiber.get()));
  }
}

}  // namespace capstan::sim
