// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTS_CONFORMANCE_BROKEN_LAMP_H_
#define CAPSTAN_TESTS_CONFORMANCE_BROKEN_LAMP_H_

#include "plugins/sdk/part.h"

namespace acme {

// What users of broken_part look for.
class Lamp : public capstan::Part {
 public:
  virtual int watts() const = 0;
};

}  // namespace acme

#endif  // CAPSTAN_TESTS_CONFORMANCE_BROKEN_LAMP_H_
