// SPDX-License-Identifier: Apache-2.0
#include "desk/init/look.h"

#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "desk/data/files.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "inference/load/run_tokenizer.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "trainer/metrics/console.h"

namespace capstan::init {
namespace {

namespace fs = std::filesystem;

// Of a text's beginning.
constexpr size_t kLookedAt = 1 << 20;
constexpr size_t kMostFiles = 100000;
constexpr size_t kOpening = 60;  // bytes

// A config's first line, in those that `init` writes, too.
constexpr char kConfigLine[] = "# proto-file: host/config/run_config.proto";

constexpr char kKnown[] =
    "init knows texts, rows (.jsonl, .json, .csv, .tsv, .parquet), learning "
    "histories (.hdf5) and model folders";

absl::Status Bad(const std::string& path, absl::string_view problem) {
  return WithCode(absl::InvalidArgumentError(absl::StrCat(path, " ", problem)),
                  "data/kind");
}

// Whether bytes are UTF-8, maybe cut within the last character, without NULs.
bool IsText(absl::string_view bytes) {
  if (absl::StrContains(bytes, absl::string_view("\0", 1))) return false;
  for (size_t cut = 0; cut < 4 && cut <= bytes.size(); ++cut) {
    if (simdjson::validate_utf8(bytes.data(), bytes.size() - cut)) return true;
  }
  return false;
}

// A prompt from the beginning of a text: whole words of its first line.
std::string OpeningOf(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  text = text.substr(0, text.find_first_of("\r\n"));
  if (text.size() > kOpening) {
    const size_t space = text.rfind(' ', kOpening);
    if (space == absl::string_view::npos) return "";
    text = text.substr(0, space);
  }
  return std::string(text);
}

// Whoever has answers with a label wants it learned, and it wouldn't be.
absl::Status CheckLabel(const std::string& path, const DataRow& row) {
  if (row.label.empty() || row.kind != "PROMPT_COMPLETION") {
    return absl::OkStatus();
  }
  return Bad(path, absl::StrCat("has answers that have a label, ",
                                PrintableText(row.label.substr(0, kOpening)),
                                ", which isn't true or false, or 1 or 0, as "
                                "preference training (KTO) takes it: write it "
                                "so; or leave the column out, and a model "
                                "learns all answers"));
}

// Fills in what the reader says of the first row that it can read. No model is
// known yet: bytes are tokens, and a template only joins what is said.
absl::Status LookAtRows(const std::vector<std::string>& plugin_path,
                        DataLook* look) {
  const ScratchFolder folder;
  if (!folder.status().ok() ||
      !WriteWholeFile(folder.path() + "/tokenizer.json", ByteTokenizerJson())
           .ok() ||
      !WriteWholeFile(folder.path() + "/chat_template.jinja",
                      "{% for m in messages %}{{ m.content }}{% endfor %}")
           .ok()) {
    return absl::OkStatus();
  }
  PluginHost host(plugin_path);
  const RunTokenizer tokenizer({folder.path()});
  const auto readings = ReadingsOf({look->path}, 0);
  absl::optional<DataRow> row;
  std::string kind;
  for (size_t i = 0; readings.ok() && i < readings->configs.size(); ++i) {
    const auto loaded =
        ParseConfig(readings->configs[i], "init", DefaultConfigContext(&host));
    if (loaded.ok()) row = FirstGoodRow(loaded->config.train_data(), &kind);
    if (row.has_value()) break;
  }
  // The reader will say what it is.
  if (!row.has_value()) return absl::OkStatus();
  if (row->kind == "PROMPT") {
    return Bad(look->path,
               "has prompts without answers, of which a model learns by "
               "rewards: begin with configs/grpo_quickstart.pbtxt "
               "(docs/grpo.md)");
  }
  CAPSTAN_RETURN_IF_ERROR(CheckLabel(look->path, *row));
  if (row->texts.size() > 1) look->kind = DataKind::kPairs;
  if (row->kind == "UNPAIRED") look->kind = DataKind::kLabels;
  look->row_kind = row->kind;
  if (row->kind == "TEXT") look->label = row->label.substr(0, kOpening);
  for (const RowTurn& turn : row->texts[0].turns) {
    // Others have a template's roles.
    look->plain_texts |= turn.role == "text" || turn.role == "prompt" ||
                         turn.role == "completion";
    if (!absl::c_linear_search(look->roles, turn.role)) {
      look->roles.push_back(turn.role);
    }
    if (look->opening.empty() &&
        (turn.role == "user" || turn.role == "prompt")) {
      look->opening = OpeningOf(turn.text);
    }
  }
  return absl::OkStatus();
}

absl::Status LookAtFile(const std::string& path, DataLook* look) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  const absl::string_view bytes = file->bytes();
  const absl::string_view begin = bytes.substr(0, kLookedAt);
  look->bytes = static_cast<int64_t>(bytes.size());
  look->files = {path};
  const FileKind kind = KindOfFile(path);
  if (kind == FileKind::kHistories) look->kind = DataKind::kHistories;
  if (kind == FileKind::kRows) look->kind = DataKind::kRows;
  if (kind != FileKind::kText) return absl::OkStatus();
  if (!IsText(begin)) {
    return Bad(path, absl::StrCat("is neither UTF-8 text nor a kind of data "
                                  "that is known: ",
                                  kKnown));
  }
  look->kind = DataKind::kText;
  look->opening = OpeningOf(begin);
  return absl::OkStatus();
}

// The files below `folder` that aren't hidden, ascending.
absl::StatusOr<std::vector<fs::path>> FilesBelow(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error);
  for (; !error && at != fs::recursive_directory_iterator();
       at.increment(error)) {
    if (absl::StartsWith(at->path().filename().string(), ".")) {
      at.disable_recursion_pending();
      continue;
    }
    if (IsRegularFile(at->path().string())) files.push_back(at->path());
    if (files.size() > kMostFiles) {
      return Bad(folder, absl::StrCat("has more than ", kMostFiles,
                                      " files: name a part of it"));
    }
  }
  if (error) {
    return Bad(folder, absl::StrCat("can't be read: ", error.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::Status LookAtFolder(const std::string& folder, DataLook* look) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<fs::path> files,
                           FilesBelow(folder));
  int64_t bytes_of_rows = 0;
  std::vector<std::string> rows;
  for (const fs::path& path : files) {
    std::error_code error;
    const auto size = static_cast<int64_t>(fs::file_size(path, error));
    if (error || size == 0) continue;
    DataLook one;
    // A file that is no data isn't in the way of others.
    const absl::Status looked = LookAtFile(path.string(), &one);
    if (!looked.ok() && !absl::IsInvalidArgument(looked)) return looked;
    if (!looked.ok()) {
      ++look->left_out;
      continue;
    }
    // An earlier call has made these, in the folder.
    if (absl::EndsWith(path.string(), kJoinedEnding) ||
        one.opening == kConfigLine) {
      continue;
    }
    if (one.kind == DataKind::kText) {
      if (look->files.empty()) look->opening = one.opening;
      look->files.push_back(path.string());
      look->bytes += size;
    } else if (one.kind != DataKind::kHistories) {
      rows.push_back(path.string());
      bytes_of_rows += size;
    }
  }
  // Code has a few .json files, and rows a README.
  if (bytes_of_rows > look->bytes) {
    *look = {DataKind::kRows, look->path, 0, {}, look->left_out};
    look->files = std::move(rows);
    look->bytes = bytes_of_rows;
  }
  if (look->bytes > 0) return absl::OkStatus();
  return Bad(folder,
             absl::StrCat("has no file that can be trained on: ", kKnown));
}

}  // namespace

bool IsModelFolder(const std::string& path) {
  if (!PathExists(path + "/config.json")) return false;
  for (const char* weights :
       {"/model.safetensors", "/model.safetensors.index.json"}) {
    if (PathExists(path + weights)) return true;
  }
  return false;
}

absl::StatusOr<DataLook> LookAt(const std::string& path,
                                const std::vector<std::string>& plugin_path) {
  DataLook look;
  look.path = path;
  if (!PathExists(path)) {
    return WithCode(
        absl::NotFoundError(absl::StrCat(
            path, " doesn't exist; name a file or folder that is there")),
        "path/missing");
  }
  if (IsModelFolder(path)) {
    look.kind = DataKind::kModel;
    return look;
  }
  CAPSTAN_RETURN_IF_ERROR(IsFolder(path) ? LookAtFolder(path, &look)
                                         : LookAtFile(path, &look));
  if (look.kind == DataKind::kRows) {
    CAPSTAN_RETURN_IF_ERROR(LookAtRows(plugin_path, &look));
  }
  return look;
}

}  // namespace capstan::init
