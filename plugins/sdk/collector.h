// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_COLLECTOR_H_
#define CAPSTAN_PLUGINS_SDK_COLLECTOR_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan {

// Reports the fraction done, in [0, 1], and a text. Returns false to cancel.
using CollectProgress =
    std::function<bool(double done, absl::string_view words)>;

// Generates the data that a reader reads. Creating a collector does no work.
class Collector {
 public:
  virtual ~Collector();

  virtual std::string output() const = 0;  // a file or folder; constant

  // Writes output() atomically, replacing what was there; the same config gives
  // the same bytes. Calls `progress` on this thread, at most a few times a
  // second, and joins its own threads. CANCELLED if progress returned false,
  // which leaves what was there.
  virtual absl::Status Collect(const CollectProgress& progress) = 0;

  // Called instead if output() is there. Returns a FieldError if it isn't what
  // the config says. By default it isn't looked at.
  virtual absl::Status CheckOutput() const { return absl::OkStatus(); }

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
  virtual void Room3();
  virtual void Room4();
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_COLLECTOR_H_
