// SPDX-License-Identifier: Apache-2.0
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/precision.h"
#include "tests/plugins/acme/broken.pb.h"

namespace acme {
namespace broken {
namespace {

// As the static initialiser in the generated code of a second copy.
void RegisterSignSgdProto() {
  google::protobuf::FileDescriptorProto file;
  file.set_name("tests/plugins/acme/signsgd.proto");
  static const std::string* const bytes =
      new std::string(file.SerializeAsString());
  google::protobuf::DescriptorPool::InternalAddGeneratedFile(
      bytes->data(), static_cast<int>(bytes->size()));
}

const bool initialised = [] {
  const char* const value = std::getenv("ACME_BROKEN");
  const std::string what = value == nullptr ? "" : value;
  if (what == "crash") raise(SIGSEGV);
  if (what == "abort") {
    std::fprintf(stderr, "no license found\n");
    std::abort();
  }
  if (what == "exit") std::exit(3);
  if (what == "slow") sleep(3);
  if (what == "clash") RegisterSignSgdProto();
  return true;
}();

}  // namespace

class Broken final : public capstan::Precision {
 public:
  static absl::StatusOr<std::unique_ptr<Broken>> Create(const Config& config) {
    if (config.create() == "crash") raise(SIGSEGV);
    if (config.create() == "exit") {
      std::printf("goodbye");
      std::exit(0);
    }
    if (config.create() == "null") return std::unique_ptr<Broken>();
    if (config.create() == "slow") sleep(3);
    return std::make_unique<Broken>();
  }

  capstan::PrecisionPolicy policy() const override { return {}; }
};

CAPSTAN_PLUGIN(Precision, Broken, acme::broken::Config, "fails when told to");

}  // namespace broken
}  // namespace acme
