// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <memory>

#include "plugins/sdk/dataset.h"
#include "plugins/sdk/plugin.h"
#include "tests/plugins/acme/keyless.pb.h"

namespace acme {
namespace keyless {

class Keyless final : public capstan::DatasetReader {
 public:
  static absl::StatusOr<std::unique_ptr<Keyless>> Create(const Config&) {
    return std::make_unique<Keyless>();
  }

  int64_t size() const override { return 1000; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t> indices,
                    capstan::Batch* batch) const override {
    (*batch)["x"] =
        at::full({static_cast<int64_t>(indices.size())}, 7, at::kLong);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<capstan::DatasetReader>> Validation()
      const override {
    return nullptr;
  }
};

CAPSTAN_PLUGIN(DatasetReader, Keyless, acme::keyless::Config,
               "samples that are no text");

}  // namespace keyless
}  // namespace acme
