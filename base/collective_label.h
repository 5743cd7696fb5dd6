// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_COLLECTIVE_LABEL_H_
#define CAPSTAN_BASE_COLLECTIVE_LABEL_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace capstan {

// Says what the collectives are about that this thread starts while it lives
// ("bucket 3", "layers.7"), for reports about ranks that hang. Scopes nest: the
// innermost counts. Tens of nanoseconds, and no memory.
class CollectiveLabel {
 public:
  static constexpr int kMaxBytes = 40;  // what is longer is cut off

  explicit CollectiveLabel(absl::string_view text);
  CollectiveLabel(absl::string_view kind, int64_t number);
  ~CollectiveLabel();
  CollectiveLabel(const CollectiveLabel&) = delete;
  CollectiveLabel& operator=(const CollectiveLabel&) = delete;

  // This thread's, "" without one. Valid while the scope lives.
  static absl::string_view Current();

 private:
  void Append(absl::string_view text);

  char text_[kMaxBytes];
  int size_ = 0;
  const CollectiveLabel* const outer_;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_COLLECTIVE_LABEL_H_
