// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HDF5_HISTORIES_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HDF5_HISTORIES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"

namespace capstan::darkroom {

// A file of learning histories, read by libhdf5 in this process: HistoryReader
// does so in another one, as libhdf5 trusts what files say. Its interface is
// HistoryReader's.
class Hdf5Histories {
 public:
  // `bytes`: the file's.
  static absl::StatusOr<std::unique_ptr<Hdf5Histories>> Open(
      const std::string& path, int64_t bytes);
  ~Hdf5Histories();
  Hdf5Histories(const Hdf5Histories&) = delete;
  Hdf5Histories& operator=(const Hdf5Histories&) = delete;

  const std::vector<int>& tasks() const { return tasks_; }
  absl::StatusOr<HistoryShape> Shape(int task) const;
  absl::StatusOr<History> Read(int task, const EnvironmentSpec& spec,
                               int64_t steps, int64_t streams) const;
  // The attribute's text; "" if there is none.
  absl::StatusOr<std::string> OriginText() const;

 private:
  Hdf5Histories(std::string path, int64_t file, int64_t bytes)
      : path_(std::move(path)), file_(file), bytes_(bytes) {}

  absl::Status ListTasks();

  const std::string path_;
  const int64_t file_;   // HDF5's handle
  const int64_t bytes_;  // the file's
  std::vector<int> tasks_;
};

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HDF5_HISTORIES_H_
