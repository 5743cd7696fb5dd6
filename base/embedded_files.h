// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_EMBEDDED_FILES_H_
#define CAPSTAN_BASE_EMBEDDED_FILES_H_

namespace capstan {

// A file of a folder, by its path there: an element of what embedded_files of
// tools/capstan.bzl generates, whose last path is null.
struct EmbeddedFile {
  const char* path;
  const char* text;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_EMBEDDED_FILES_H_
