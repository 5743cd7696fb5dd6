// SPDX-License-Identifier: Apache-2.0
//
// For tests: files as torch.save writes them, made of opcodes, so that they can
// also be what it never writes.
#ifndef CAPSTAN_DESK_CONVERT_TORCH_FILE_FOR_TEST_H_
#define CAPSTAN_DESK_CONVERT_TORCH_FILE_FOR_TEST_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan::torch_test {

// A number in little-endian bytes.
inline std::string Le(uint64_t value, int bytes) {
  return std::string(reinterpret_cast<const char*>(&value), bytes);
}

// Opcodes that leave one value on the stack.
inline std::string Text(const std::string& text) {
  return absl::StrCat("X", Le(text.size(), 4), text);
}
inline std::string Int(int64_t value) {
  return absl::StrCat("\x8a\x08", Le(value, 8));
}
inline std::string Tuple(const std::vector<std::string>& items) {
  return absl::StrCat("(", absl::StrJoin(items, ""), "t");
}
inline std::string Ints(const std::vector<int64_t>& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(Int(value));
  return Tuple(items);
}
inline std::string List(const std::vector<std::string>& items) {
  return absl::StrCat("](", absl::StrJoin(items, ""), "e");
}
// Keys are texts.
using Items = std::vector<std::pair<std::string, std::string>>;
inline std::string Dict(const Items& items) {
  std::string all = "}(";
  for (const auto& [key, value] : items)
    absl::StrAppend(&all, Text(key), value);
  return all + "u";
}
inline std::string Global(const std::string& module, const std::string& name) {
  return absl::StrCat("c", module, "\n", name, "\n");
}
inline std::string Call(const std::string& global,
                        const std::vector<std::string>& arguments) {
  return absl::StrCat(global, Tuple(arguments), "R");
}
// An instance of a class of data.
inline std::string Object(const std::string& global, const Items& state) {
  return absl::StrCat(global, ")\x81", Dict(state), "b");
}
inline std::string Size(const std::vector<int64_t>& sizes) {
  return Call(Global("torch", "Size"), {Ints(sizes)});
}
inline std::string Tensor(const std::string& key,
                          const std::vector<int64_t>& sizes,
                          const std::vector<int64_t>& strides,
                          int64_t offset = 0,
                          const std::string& storage = "FloatStorage") {
  const std::string id = Tuple({Text("storage"), Global("torch", storage),
                                Text(key), Text("cpu"), Int(0)});
  return Call(Global("torch._utils", "_rebuild_tensor_v2"),
              {id + "Q", Int(offset), Ints(sizes), Ints(strides), "\x89", "N"});
}
inline std::string Pickled(const std::string& value) {
  return absl::StrCat("\x80\x02", value, ".");
}

inline std::string Floats(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(float));
}

// An uncompressed archive without checksums (0).
inline std::string Zip(const Items& files) {
  std::string bytes, directory;
  for (const auto& [name, contents] : files) {
    const std::string sizes =
        absl::StrCat(Le(0, 4), Le(contents.size(), 4), Le(contents.size(), 4),
                     Le(name.size(), 2), Le(0, 2));
    absl::StrAppend(&directory, "PK\1\2", Le(0, 8), Le(0, 4), sizes, Le(0, 10),
                    Le(bytes.size(), 4), name);
    absl::StrAppend(&bytes, "PK\3\4", Le(0, 6), Le(0, 4), sizes, name,
                    contents);
  }
  return absl::StrCat(bytes, directory, "PK\5\6", Le(0, 4), Le(files.size(), 2),
                      Le(files.size(), 2), Le(directory.size(), 4),
                      Le(bytes.size(), 4), Le(0, 2));
}

// What torch.save writes of a value whose tensors have these storages, by key.
inline std::string Saved(const std::string& value,
                         const std::map<std::string, std::string>& storages) {
  Items files = {{"archive/data.pkl", Pickled(value)},
                 {"archive/byteorder", "little"}};
  for (const auto& [key, bytes] : storages) {
    files.emplace_back("archive/data/" + key, bytes);
  }
  return Zip(files);
}

}  // namespace capstan::torch_test

#endif  // CAPSTAN_DESK_CONVERT_TORCH_FILE_FOR_TEST_H_
