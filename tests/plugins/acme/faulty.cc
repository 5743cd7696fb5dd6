// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/plugin.h"
#include "tests/plugins/acme/faulty.pb.h"

namespace acme {
namespace faulty {

// Writes where nothing is.
__attribute__((noinline)) void Crash() {
  volatile int* volatile nowhere = nullptr;
  *nowhere = 1;
}

class Faulty final : public capstan::DatasetReader {
 public:
  static absl::StatusOr<std::unique_ptr<Faulty>> Create(const Config& config) {
    return std::unique_ptr<Faulty>(new Faulty(config));
  }

  int64_t size() const override { return 1000; }
  bool shuffle() const override { return false; }

  absl::Status Read(absl::Span<const int64_t> indices,
                    capstan::Batch* batch) const override {
    for (int64_t index : indices) {
      if (index != config_.broken_sample()) continue;
      if (config_.out_of_memory()) throw std::bad_alloc();
      if (config_.exit()) std::exit(0);
      if (config_.crash()) Crash();
      return absl::DataLossError(
          absl::StrCat("faulty.bin: sample ", index, " is damaged"));
    }
    (*batch)["input_ids"] =
        at::full({static_cast<int64_t>(indices.size()), 32}, 7, at::kLong);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<capstan::DatasetReader>> Validation()
      const override {
    return nullptr;
  }

 private:
  explicit Faulty(const Config& config) : config_(config) {}

  const Config config_;
};

CAPSTAN_PLUGIN(DatasetReader, Faulty, acme::faulty::Config,
               "a reader that fails at one sample");

}  // namespace faulty
}  // namespace acme
