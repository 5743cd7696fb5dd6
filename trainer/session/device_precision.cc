// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/device_precision.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/machine.h"

namespace capstan {
namespace {

// Of the least able GPU; 0: not known.
int LeastComputeCapability() {
  int least = 0;
  for (const std::string& text : QueryGpus("compute_cap")) {
    double version = 0.0;  // "8.0"
    if (!absl::SimpleAtod(text, &version)) return 0;
    const int capability = static_cast<int>(std::lround(10 * version));
    least = least == 0 ? capability : std::min(least, capability);
  }
  return least;
}

}  // namespace

DeviceFacts DeviceOf(const Precision& precision, int gpus) {
  DeviceFacts device;
  device.gpu = gpus > 0;
  if (device.gpu && precision.depends_on_device()) {
    device.compute_capability = LeastComputeCapability();
  }
  return device;
}

std::string DtypeName(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::Half:
      return "float16";
    default:
      return c10::toString(dtype);
  }
}

bool IsSlow(c10::ScalarType dtype, const DeviceFacts& device) {
  return !device.gpu && c10::isReducedFloatingType(dtype);
}

std::string SlowPrecisionNote(const Precision& precision,
                              const std::string& package,
                              const DeviceFacts& device) {
  const c10::ScalarType dtype = precision.PolicyOn(device).compute;
  if (!IsSlow(dtype, device)) return "";
  const std::string instead = precision.instead();
  return absl::StrCat(
      package, " computes in ", DtypeName(dtype),
      ", in which CPUs are often several times slower than in float32",
      instead.empty() ? "" : absl::StrCat("; set ", instead));
}

}  // namespace capstan
