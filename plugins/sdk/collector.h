// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_COLLECTOR_H_
#define CAPSTAN_PLUGINS_SDK_COLLECTOR_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan {

// Reports progress: the fraction done, in [0, 1], and a short text ("goal 12 of
// 81, return 17.2"). Returns false to cancel.
using CollectProgress =
    std::function<bool(double done, absl::string_view words)>;

// Generates the data that a reader reads: it runs learners to record learning
// histories, for example. Creating a collector does no work.
class Collector {
 public:
  virtual ~Collector();

  // The file or folder that Collect writes. Constant.
  virtual std::string output() const = 0;

  // Writes it atomically, replacing what was there. Calls `progress` on the
  // calling thread, at most a few times a second; may start threads, and joins
  // them before it returns. CANCELLED if progress returned false.
  virtual absl::Status Collect(const CollectProgress& progress) = 0;

  // A run collects only what is missing. This is called if output() is there,
  // and returns a FieldError if the config says that it is something else than
  // it is. Default: it isn't looked at.
  virtual absl::Status CheckOutput() const { return absl::OkStatus(); }
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_COLLECTOR_H_
