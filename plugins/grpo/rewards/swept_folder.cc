// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/swept_folder.h"

#include "absl/memory/memory.h"
#include "base/status.h"

namespace capstan::grpo {
namespace {

// A program that dies with this process may still write for a moment.
constexpr char kSweep[] = R"(for again in 1 2 3; do
  rm -rf -- "$0" && exit
  sleep 1
done)";

}  // namespace

absl::StatusOr<std::unique_ptr<SweptFolder>> SweptFolder::Create() {
  auto swept = absl::WrapUnique(new SweptFolder);
  CAPSTAN_RETURN_IF_ERROR(swept->folder_.status());
  CAPSTAN_ASSIGN_OR_RETURN(swept->guard_,
                           EndGuard::Start(kSweep, swept->path()));
  return swept;
}

}  // namespace capstan::grpo
