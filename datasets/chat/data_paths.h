// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_DATA_PATHS_H_
#define CAPSTAN_DATASETS_CHAT_DATA_PATHS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan::chat {

// The files that `path` stands for, ascending: itself; those that a pattern
// ("data/train-*.parquet") matches; those of a folder and of its folders that
// are data files by name. Of a folder with files or folders named "train..",
// only those; files of several folders are an error that lists the folders, as
// they are different data sets.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_DATA_PATHS_H_
