// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_WEIGHT_FILES_H_
#define CAPSTAN_TRAINER_CHECKPOINT_WEIGHT_FILES_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {

// As transformers' save_pretrained has it.
constexpr int64_t kMaxShardBytes = int64_t{5} << 30;

// A tensor to write.
struct WeightFileTensor {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape;
  int64_t bytes() const;
};

// A Hugging Face folder's weights, written in the order of `tensors`:
// FOLDER/NAME.safetensors, or shards with an index. Split as in transformers: a
// shard is full when the next tensor would exceed the limit.
class WeightFiles {
 public:
  WeightFiles(std::string folder, std::string name, int64_t max_shard_bytes,
              std::vector<WeightFileTensor> tensors);

  // Writes tensor `index`, which must be the next one: all of its bytes,
  // row-major.
  absl::Status Add(int index, const void* data);

  // Reads all files again and compares them with what was added. DATA_LOSS,
  // naming file and tensor, if they differ; FAILED_PRECONDITION if tensors are
  // missing.
  absl::Status Finish();

 private:
  size_t shard_count() const { return first_.size() - 1; }
  std::string FileName(size_t shard) const;
  absl::Status OpenNext();
  absl::Status Compare() const;

  const std::string folder_;
  const std::string name_;
  const std::vector<WeightFileTensor> tensors_;
  std::vector<int> first_;           // first tensor of each shard, and the end
  std::vector<uint32_t> checksums_;  // of the tensors added, in order
  int64_t total_bytes_ = 0;
  size_t shard_ = 0;
  std::unique_ptr<SafetensorsWriter> writer_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_WEIGHT_FILES_H_
