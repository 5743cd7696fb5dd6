// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_COLLECTOR_H_
#define CAPSTAN_PLUGINS_SDK_COLLECTOR_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan {

// How far a collector has come: the part that is done, in [0, 1], and a few
// words on it ("goal 12 of 81, return 17.2"). False: the user wants to stop.
using CollectProgress =
    std::function<bool(double done, absl::string_view words)>;

// Makes the data that a reader reads, where nobody has made it yet: learning
// histories, by running the learners. Creating one does nothing yet.
class Collector {
 public:
  virtual ~Collector();

  // The file or folder that Collect makes. Constant.
  virtual std::string output() const = 0;

  // Makes it; it appears whole or not at all, and replaces what was there.
  // Calls `progress` from the calling thread, a few times a second at most;
  // may start threads, and joins them before it returns. CANCELLED if progress
  // said so.
  virtual absl::Status Collect(const CollectProgress& progress) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_COLLECTOR_H_
