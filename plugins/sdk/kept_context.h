// SPDX-License-Identifier: Apache-2.0
//
// Since minor version 3.
#ifndef CAPSTAN_PLUGINS_SDK_KEPT_CONTEXT_H_
#define CAPSTAN_PLUGINS_SDK_KEPT_CONTEXT_H_

#include <cstdint>

namespace capstan {

// An Objective also derives from this if Sample can go on where it was: a
// prompt that begins as the last text, as the next turn of a conversation does,
// then costs what is new of it; found by dynamic_cast.
class KeptContext {
 public:
  virtual ~KeptContext();

  // From now on Sample keeps what it computed of its text until the next call,
  // or, with false, no longer. Only while the model and its weights stay the
  // same.
  virtual void KeepContext(bool keep) = 0;
};

// A KvCache also derives from this if what it holds of a position depends on
// how long the text is (dynamic rope, longrope); found by dynamic_cast.
class LengthDependentCache {
 public:
  virtual ~LengthDependentCache();

  // Whether the positions that it holds are those of a text of `length` tokens
  // that begins with them.
  virtual bool FitsLength(int64_t length) const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_KEPT_CONTEXT_H_
