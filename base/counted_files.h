// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_COUNTED_FILES_H_
#define CAPSTAN_BASE_COUNTED_FILES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace capstan {

// A file that a reader has read, and what was counted in it, for a user to
// compare with what he knows of it. By name: "bytes" of the file as it is;
// "members" of a packed one (gzip's members, zstd's frames) and its
// "unpacked_bytes"; "rows" that become samples, "bad_rows" and
// "untrained_rows", which don't; a reader may count more.
struct CountedFile {
  std::string path;
  std::map<std::string, int64_t> counts;
};

// Beside DatasetReader, on the same object, found by dynamic_cast. Header only,
// as it is shared by the core and plugins.
class CountsFiles {
 public:
  virtual ~CountsFiles() = default;
  // In the order in which they are read. Not those that another reader tells
  // of: what is held out of training data is in its files.
  virtual std::vector<CountedFile> counted_files() const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_COUNTED_FILES_H_
