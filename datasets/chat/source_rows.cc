// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/source_rows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "datasets/chat/data_paths.h"

namespace capstan::chat {

absl::StatusOr<SourceRows> SourceRows::Open(const std::string& path,
                                            const IndexOptions& options,
                                            uint64_t tokenizer_hash) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> paths, FilesOf(path));
  SourceRows rows;
  size_t end = 0;
  for (const std::string& name : paths) {
    File file;
    CAPSTAN_ASSIGN_OR_RETURN(file.file, OpenSource(name));
    CAPSTAN_ASSIGN_OR_RETURN(
        RowIndex index, RowIndex::Open(file.file, options, tokenizer_hash));
    file.index = std::make_unique<RowIndex>(std::move(index));
    end += file.index->rows().size();
    file.end = end;
    rows.files_.push_back(std::move(file));
  }
  if (end > std::numeric_limits<uint32_t>::max()) {
    return absl::UnimplementedError(absl::StrCat(
        path, " has more than 4,294,967,295 rows: make it several sources"));
  }
  return rows;
}

SourceRows::Place SourceRows::At(size_t row) const {
  const auto file =
      files_.size() == 1
          ? files_.begin()
          : std::upper_bound(files_.begin(), files_.end(), row,
                             [](size_t r, const File& f) { return r < f.end; });
  const absl::Span<const IndexedRow> rows = file->index->rows();
  return {&*file, rows[row - (file->end - rows.size())]};
}

bool SourceRows::has_chats() const {
  return std::any_of(files_.begin(), files_.end(), [](const File& file) {
    return file.index->facts().chats > 0;
  });
}

absl::Status SourceRows::Check() const {
  constexpr size_t kFew = 8;  // a stat each
  if (files_.size() > kFew) return MappedFile::CheckAll();
  for (const File& file : files_) {
    CAPSTAN_RETURN_IF_ERROR(file.index->Check());
  }
  return absl::OkStatus();
}

}  // namespace capstan::chat
