// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_SAME_FILE_H_
#define CAPSTAN_BASE_SAME_FILE_H_

#include <sys/stat.h>

#include <string>

namespace capstan {

// Whether `path` leads to the open file or folder `fd`.
inline bool LeadsTo(const std::string& path, int fd) {
  struct stat opened, named;
  return fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace capstan

#endif  // CAPSTAN_BASE_SAME_FILE_H_
