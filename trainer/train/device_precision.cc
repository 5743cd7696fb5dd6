// SPDX-License-Identifier: Apache-2.0
#include "trainer/train/device_precision.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trainer/memory/gpu_query.h"

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

// The host's precisions that the device is not slow in, with their defaults.
std::vector<std::string> FastPrecisions(const DeviceFacts& device,
                                        PluginHost& host) {
  std::vector<std::string> fast;
  for (const std::string& package : host.Available()) {
    const std::string type = absl::StrCat(package, ".Config");
    const absl::StatusOr<const LoadedPlugin*> plugin = host.Load(type);
    // `trainer plugins` is the place to learn of broken ones.
    if (!plugin.ok() ||
        (*plugin)->descriptor->category != PluginCategory::kPrecision) {
      continue;
    }
    const absl::StatusOr<std::unique_ptr<Precision>> made =
        host.Create<Precision>(type, PluginCategory::kPrecision, "");
    if (made.ok() && !IsSlow((*made)->PolicyOn(device).compute, device)) {
      fast.push_back(absl::StrCat("precision=", package));
    }
  }
  return fast;
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
                              const DeviceFacts& device, PluginHost& host) {
  const c10::ScalarType dtype = precision.PolicyOn(device).compute;
  if (!IsSlow(dtype, device)) return "";
  const std::vector<std::string> fast = FastPrecisions(device, host);
  return absl::StrCat(
      package, " computes in ", DtypeName(dtype),
      ", in which CPUs are often several times slower than in float32",
      fast.empty() ? "" : "; set ", absl::StrJoin(fast, " or "));
}

}  // namespace capstan
