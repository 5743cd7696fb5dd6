// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/source_file.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "datasets/chat/packing.h"
#include "datasets/chat/row_index.h"

namespace capstan::chat {
namespace {

constexpr absl::string_view kGzip("\x1f\x8b", 2);
constexpr absl::string_view kZstd("\x28\xb5\x2f\xfd", 4);
constexpr absl::string_view kParquet("PAR1", 4);

bool Exists(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

}  // namespace

absl::StatusOr<SourceFile> OpenSource(const std::string& path) {
  SourceFile source;
  source.path = path;
  CAPSTAN_ASSIGN_OR_RETURN(source.text, MappedFile::Open(path));
  const absl::string_view bytes = source.text->bytes();
  if (absl::StartsWith(bytes, kParquet)) {
    return absl::UnimplementedError(absl::StrCat(
        path,
        " is a Parquet file, which isn't read; convert it to JSON lines, for "
        "instance with Python: import pandas; pandas.read_parquet(\"FILE\")"
        ".to_json(\"FILE.jsonl\", orient=\"records\", lines=True)"));
  }
  const bool gzip = absl::StartsWith(bytes, kGzip);
  if (!gzip && !absl::StartsWith(bytes, kZstd)) return source;
  CacheKey key;
  CAPSTAN_RETURN_IF_ERROR(key.AddFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string unpacked,
      CachedFile(path, key.hash(), "json", Exists, [&](HiddenFile* to) {
        return gzip ? UnpackGzip(path, to) : UnpackZstd(path, to);
      }));
  CAPSTAN_ASSIGN_OR_RETURN(source.text, MappedFile::Open(unpacked));
  return source;
}

}  // namespace capstan::chat
