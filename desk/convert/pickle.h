// SPDX-License-Identifier: Apache-2.0
//
// Reads Python pickles as data: what would call a function or create an object
// in Python becomes a value that says so. Nothing is ever run.
#ifndef CAPSTAN_DESK_CONVERT_PICKLE_H_
#define CAPSTAN_DESK_CONVERT_PICKLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// A value in a pickle. Values may contain each other or themselves, so whoever
// follows them must bound its depth.
struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,        // integer is 0 or 1
    kInt,         // integer
    kFloat,       // real
    kText,        // text, bytes as well as strings
    kTuple,       // items
    kList,        // items; sets, too
    kDict,        // items: key, value, key, value, ..; ordered ones, too
    kGlobal,      // text: "MODULE.NAME", a class or a function
    kObject,      // text: the global that would make it; items: its arguments
    kPersistent,  // items[0]: what names something outside the pickle
    kLong,        // an integer beyond 64 bits, which is not kept
  };

  Kind kind = Kind::kNone;
  union {
    int64_t integer = 0;
    double real;
  };
  absl::string_view text;
  std::vector<const PickleValue*> items;
  const PickleValue* state = nullptr;  // what __setstate__ would get

  bool is(Kind k) const { return kind == k; }
  bool is_object(absl::string_view global) const {
    return kind == Kind::kObject && text == global;
  }
  // The value of a key of a dict, or an attribute of an object; a None if there
  // is none.
  const PickleValue& At(absl::string_view key) const;
  // Of a dict, in its order; none of others.
  struct Entry {
    const PickleValue& key;
    const PickleValue& value;
  };
  std::vector<Entry> entries() const;
};

// Owns all values of one pickle.
class Pickle {
 public:
  // Larger pickles are refused. Values take many times their bytes.
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr size_t kMostValues = size_t{32} << 20;

  // Reads the pickle at the start of `bytes`, which it copies. `allowed` says
  // whether a pickle may name a global; PERMISSION_DENIED names one that it may
  // not, other errors say at which byte the pickle is malformed.
  static absl::StatusOr<std::unique_ptr<const Pickle>> Read(
      absl::string_view bytes, bool (*allowed)(absl::string_view global));

  const PickleValue& root() const { return *root_; }
  // What the pickle's persistent values name.
  template <typename Function>
  void ForEachPersistent(const Function& function) const {
    for (const PickleValue& value : values_) {
      if (value.is(PickleValue::Kind::kPersistent)) function(*value.items[0]);
    }
  }
  // How many bytes the pickle has; others may follow.
  size_t size() const { return size_; }

 private:
  friend class PickleReader;
  std::string bytes_;
  std::deque<std::string> names_;
  std::deque<PickleValue> values_;  // addresses are stable
  const PickleValue* root_ = nullptr;
  size_t size_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_CONVERT_PICKLE_H_
