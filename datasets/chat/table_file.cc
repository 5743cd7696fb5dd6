// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/table_file.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/confine.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "datasets/tables/tables.h"

namespace capstan::chat {
namespace {

constexpr absl::string_view kParquet("PAR1", 4);
// What Arrow may take; a row group's dictionaries and a page are in memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kMostMemory = int64_t{1} << 60;  // shadows need address space
#else
constexpr int64_t kMostMemory = int64_t{6} << 30;
#endif
constexpr size_t kPiece = 1 << 20;
constexpr size_t kMostMessage = 1000;

// The child's exit codes.
constexpr int kDone = 0;       // the packed file's members are in the message
constexpr int kFailed = 1;     // what is wrong is in the message
constexpr int kNoLibrary = 2;  // why is in the message

const char* NameOf(Table table) {
  if (table == Table::kParquet) return "Parquet";
  return table == Table::kCsv ? "CSV" : "TSV";
}

// In the folders above this code's and the program's, where the build and
// //:dist put it; "" if it isn't there.
std::string FindFrom(std::string folder) {
  for (int level = 0; level < 5 && !folder.empty(); ++level) {
    for (const char* below : {"/", "/datasets/tables/", "/lib/"}) {
      const std::string path = absl::StrCat(folder, below, kTablesLibrary);
      if (access(path.c_str(), R_OK) == 0) return path;
    }
    folder = folder.substr(0, folder.rfind('/'));
  }
  return "";
}

std::string FindLibrary() {
  const char* const set = std::getenv("CAPSTAN_TABLES_LIBRARY");
  if (set != nullptr && *set != 0) return set;
  std::string path =
      FindFrom(LibraryFolder(reinterpret_cast<const void*>(&TableRows)));
  return path.empty() ? FindFrom(ExecutableFolder()) : path;
}

// 0 at the end or after an error.
size_t ReadSome(int fd, char* out, size_t most) {
  ssize_t size = 0;
  do {
    size = read(fd, out, most);
  } while (size < 0 && errno == EINTR);
  return size < 0 ? 0 : static_cast<size_t>(size);
}

bool WriteFully(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = write(fd, bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(size));
  }
  return true;
}

// Longer takes only what was made to; text grows in unpacking.
ChildLimits LimitsOf(const std::string& path) {
  ChildLimits limits;
  limits.bytes = kMostMemory;
  struct stat info;
  if (stat(path.c_str(), &info) == 0) limits.cpu_seconds += info.st_size >> 20;
  return limits;
}

// What runs in the child.
class Child {
 public:
  Child(const std::string& path, Table table, Packed packed,
        const std::string& library, int lines, int message)
      : path_(path),
        table_(table),
        packed_(packed),
        library_(library),
        lines_(lines),
        message_(message) {}

  int Run() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // not longer than its parent
    ConfineChild(LimitsOf(path_), {lines_, message_});
    // Others reserve more address space than they use.
    setenv("ARROW_DEFAULT_MEMORY_POOL", "system", 1);
    void* const library = dlopen(library_.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto convert =
        library == nullptr
            ? nullptr
            : reinterpret_cast<TableToJson>(dlsym(library, kTablesSymbol));
    if (convert == nullptr) {
      const char* const why = dlerror();
      return Say(kNoLibrary, why == nullptr ? "" : why);
    }
    return Convert(convert);
  }

 private:
  int Say(int code, absl::string_view message) {
    WriteFully(message_, message.substr(0, kMostMessage));
    return code;
  }

  int Convert(TableToJson convert) {
    TableJob job;
    job.path = path_.c_str();
    job.context = this;
    job.write = [](void* context, const char* bytes, size_t size) {
      return WriteFully(static_cast<Child*>(context)->lines_, {bytes, size});
    };
    if (table_ != Table::kParquet) {
      job.delimiter = table_ == Table::kCsv ? ',' : '\t';
      absl::StatusOr<std::unique_ptr<ByteStream>> bytes =
          OpenBytes(path_, packed_);
      if (!bytes.ok()) return Say(kFailed, bytes.status().message());
      bytes_ = *std::move(bytes);
      job.read = [](void* context, char* to, int64_t most) {
        return static_cast<Child*>(context)->Read(to, most);
      };
    }
    char why[kMostMessage] = {};
    if (convert(&job, why, sizeof(why))) {
      return Say(kDone,
                 absl::StrCat(bytes_ == nullptr ? 0 : bytes_->members()));
    }
    return Say(kFailed, error_.ok() ? absl::StrCat(path_, " can't be read as ",
                                                   NameOf(table_), ": ", why)
                                    : error_.message());
  }

  int64_t Read(char* to, int64_t most) {
    const absl::StatusOr<size_t> size =
        bytes_->Read(to, static_cast<size_t>(most));
    if (size.ok()) return static_cast<int64_t>(*size);
    error_ = size.status();
    return -1;
  }

  const std::string& path_;
  const Table table_;
  const Packed packed_;
  const std::string& library_;
  const int lines_;
  const int message_;
  std::unique_ptr<ByteStream> bytes_;
  absl::Status error_;
};

// The child's end: the packed file's members.
absl::StatusOr<uint64_t> Ended(const std::string& path, Table table,
                               const ChildEnd& end,
                               const std::string& message) {
  const auto cant = [&](const auto&... why) {
    return absl::DataLossError(
        absl::StrCat(path, " can't be read as ", NameOf(table), ": ", why...));
  };
  if (end.signal == SIGXCPU) {
    return cant("it takes too long, more than ", LimitsOf(path).cpu_seconds,
                " s: split it, or convert it to JSON lines");
  }
  if (end.signal > 0) {
    return cant("it is damaged in a way that ends Arrow (", end.Text(), ")");
  }
  uint64_t members = 0;
  switch (end.code) {
    case kDone:
      if (!absl::SimpleAtoi(message, &members)) return cant("its end is lost");
      return members;
    case kFailed:
      return absl::DataLossError(message);
    case kNoLibrary:
      return absl::UnimplementedError(
          absl::StrCat(path, " can't be read as ", NameOf(table), ": ",
                       kTablesLibrary, " can't be opened (", message, ")"));
    default:
      return cant("the process that reads it failed: ", end.Text());
  }
}

// Passes on what the child writes, until it closes the pipe.
absl::Status Take(const std::string& path, uint64_t most, int lines,
                  const std::function<absl::Status(absl::string_view)>& sink) {
  std::vector<char> buffer(kPiece);
  uint64_t all = 0;
  while (true) {
    const size_t size = ReadSome(lines, buffer.data(), buffer.size());
    if (size == 0) return absl::OkStatus();
    all += size;
    if (all > most) return TooLarge(path, most);
    CAPSTAN_RETURN_IF_ERROR(sink({buffer.data(), size}));
  }
}

}  // namespace

Table TableOf(const std::string& path, absl::string_view bytes) {
  if (absl::StartsWith(bytes, kParquet)) return Table::kParquet;
  std::string name = absl::AsciiStrToLower(path);
  absl::string_view rest = name;
  ConsumePackedExtension(&rest);
  if (absl::EndsWith(rest, ".parquet")) return Table::kParquet;
  if (absl::EndsWith(rest, ".csv")) return Table::kCsv;
  return absl::EndsWith(rest, ".tsv") ? Table::kTsv : Table::kNot;
}

absl::StatusOr<uint64_t> TableRows(
    const std::string& path, Table table, Packed packed, uint64_t most,
    const std::function<absl::Status(absl::string_view)>& sink) {
  const std::string library = FindLibrary();
  if (library.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        path, " is ", NameOf(table), ", which is read by Arrow, and ",
        kTablesLibrary,
        " isn't part of this build: build where the Python package pyarrow can "
        "be fetched (docs/chat_data.md), or convert the file to JSON lines"));
  }
  Pipe lines;
  Pipe message;
  if (!lines.ok() || !message.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        path,
        " can't be read: there are no more pipes: ", std::strerror(errno)));
  }
  const pid_t child = fork();
  if (child < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " can't be read: there is no other process for it: ",
                     std::strerror(errno)));
  }
  if (child == 0) {
    lines.CloseRead();
    message.CloseRead();
    _exit(Child(path, table, packed, library, lines.write_end(),
                message.write_end())
              .Run());
  }
  lines.CloseWrite();
  message.CloseWrite();
  const absl::Status taken = Take(path, most, lines.read_end(), sink);
  if (!taken.ok()) kill(child, SIGKILL);
  std::string text(kMostMessage, 0);
  text.resize(taken.ok() ? ReadSome(message.read_end(), &text[0], text.size())
                         : 0);
  const ChildEnd end = WaitFor(child);
  CAPSTAN_RETURN_IF_ERROR(taken);
  return Ended(path, table, end, text);
}

}  // namespace capstan::chat
