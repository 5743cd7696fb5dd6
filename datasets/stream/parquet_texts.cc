// SPDX-License-Identifier: Apache-2.0
//
// Parquet by Arrow, in a child process for each thread that reads: what a
// damaged file does to Arrow ends the child.
#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/confined_child.h"
#include "base/error_code.h"
#include "base/own_library.h"
#include "base/status.h"
#include "datasets/stream/texts.h"
#include "datasets/tables/tables.h"
#include "datasets/tables/text_column.h"

namespace capstan::stream {
namespace {

constexpr uint64_t kMostAnswer = uint64_t{1} << 30;
// What text_column.cc says of a healthy file.
constexpr char kNoSuchColumn[] = " column \"";
constexpr size_t kMostOpen = 64;  // files of a child
constexpr size_t kMostError = 1000;
// Of texts, after which an answer ends, and the rest is asked for.
constexpr size_t kAnswerBytes = size_t{256} << 20;
// Of a cell: where a footer doesn't tell how long repeated texts are.
constexpr int64_t kMostRows = 1024;
constexpr size_t kFootersAtOnce = 200;  // each holds an open file
constexpr int64_t kEnd = 64 << 10;      // has the footer, as a rule
constexpr int64_t kNull = -1;           // in place of a text's size
constexpr int64_t kTooLong = -2;        // behind it, the size

// What a child is asked: followed by the path.
struct Request {
  enum What : int64_t {
    kFacts,  // how many rows and bytes there are
    kPlace,  // from which byte of the file to which rows lie
    kTexts
  };
  int64_t what = kFacts;
  int64_t first = 0;
  int64_t count = 0;
  int64_t path_bytes = 0;
};

void AppendNumber(int64_t number, std::string* to) {
  to->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// What Arrow says may have bytes of the file in it.
std::string OneLine(absl::string_view text) {
  const bool utf8 = CheckText(text).ok();
  std::string line(text);
  for (char& c : line) {
    if (!absl::ascii_isprint(c) && (absl::ascii_isascii(c) || !utf8)) c = '?';
  }
  return line;
}

int64_t TakeNumber(absl::string_view* from) {
  int64_t number = 0;
  if (from->size() < sizeof(number)) {
    *from = "";
    return kNull;
  }
  std::memcpy(&number, from->data(), sizeof(number));
  from->remove_prefix(sizeof(number));
  return number;
}

// In the child.
class Server {
 public:
  Server(const ConfinedChild::Parent& parent, const std::string& field)
      : parent_(parent), field_(field) {}

  void Serve(const std::string& library_path) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // Others reserve more address space than they use.
    setenv("ARROW_DEFAULT_MEMORY_POOL", "system", 1);
    opened_ = OpenApi(library_path);
    Request request;
    while (parent_.Receive(&request, sizeof(request))) {
      std::string path(static_cast<size_t>(request.path_bytes), '\0');
      if (!parent_.Receive(&path[0], path.size())) break;
      const absl::Status status = Answer(path, request);
      const bool sent =
          status.ok() ? parent_.Send(absl::string_view(answer_))
                      : parent_.Send(absl::StatusOr<absl::string_view>(status));
      if (!sent) break;
    }
    _exit(0);
  }

 private:
  struct Open {
    std::string path;
    ino_t inode = 0;
    void* column = nullptr;
    int64_t rows = 0;
    int64_t bytes = 0;
    int64_t next = 0;
  };

  absl::Status OpenApi(const std::string& path) {
    const absl::StatusOr<void*> get = LibrarySymbol(
        path, kTablesLibrary, kTextColumnSymbol, RTLD_NOW | RTLD_LOCAL);
    if (!get.ok()) return absl::UnimplementedError(get.status().message());
    api_ = reinterpret_cast<TextColumn>(*get)();
    if (api_->size == sizeof(TextColumnApi)) return absl::OkStatus();
    return absl::UnimplementedError(
        RefusedLibrary(path, "it is of another build").message());
  }

  absl::Status Answer(const std::string& path, const Request& request) {
    answer_.clear();
    if (!opened_.ok()) return opened_;
    char error[kMostError] = {};
    Open open = TakeOpen(path, request.first);
    if (open.column == nullptr) {
      open.column = api_->open(path.c_str(), field_.c_str(), &open.rows,
                               &open.bytes, error, sizeof(error));
      if (open.column == nullptr) {
        return absl::StrContains(error, kNoSuchColumn)
                   ? absl::InvalidArgumentError(error)
                   : absl::DataLossError(error);
      }
    }
    if (request.what == Request::kFacts) {
      AppendNumber(open.rows, &answer_);
      AppendNumber(open.bytes, &answer_);
      api_->close(open.column);
      return absl::OkStatus();
    }
    if (request.what == Request::kPlace) {
      int64_t begin = 0;
      int64_t end = 0;
      api_->place(open.column, request.first, request.count, &begin, &end);
      AppendNumber(begin, &answer_);
      AppendNumber(end, &answer_);
    } else {
      taken_ = 0;
      const bool read = api_->read(
          open.column, request.first, request.count, this,
          [](void* server, const char* text, size_t size) {
            return static_cast<Server*>(server)->Take(text, size);
          },
          error, sizeof(error));
      if (!read) {
        api_->close(open.column);
        return absl::string_view(error) == kTooMuchMemory
                   ? absl::ResourceExhaustedError(error)
                   : absl::DataLossError(error);
      }
      open.next = request.first + taken_;
    }
    open_.push_front(open);
    if (open_.size() > kMostOpen) {
      api_->close(open_.back().column);
      open_.pop_back();
    }
    return absl::OkStatus();
  }

  // Of those that are open before the row, the nearest, which goes on from
  // there, unless another file has taken its path (a copy of an object that was
  // removed and fetched again).
  Open TakeOpen(const std::string& path, int64_t first) {
    Open wanted;
    wanted.path = path;
    struct stat info;
    if (stat(path.c_str(), &info) == 0) wanted.inode = info.st_ino;
    auto best = open_.end();
    for (auto it = open_.begin(); it != open_.end();) {
      if (it->path == path && it->inode != wanted.inode) {
        api_->close(it->column);
        it = open_.erase(it);
        continue;
      }
      if (it->path == path && it->next <= first &&
          (best == open_.end() || it->next > best->next)) {
        best = it;
      }
      ++it;
    }
    if (best == open_.end()) return wanted;
    const Open open = *best;
    open_.erase(best);
    return open;
  }

  bool Take(const char* text, size_t size) {
    const bool too_long = static_cast<int64_t>(size) > kMostDocument;
    if (taken_ > 0 && !too_long && answer_.size() + size > kAnswerBytes) {
      return false;
    }
    ++taken_;
    if (text == nullptr) {
      AppendNumber(kNull, &answer_);
    } else if (too_long) {
      AppendNumber(kTooLong, &answer_);
      AppendNumber(static_cast<int64_t>(size), &answer_);
    } else {
      AppendNumber(static_cast<int64_t>(size), &answer_);
      answer_.append(text, size);
    }
    return true;
  }

  const ConfinedChild::Parent& parent_;
  const std::string& field_;
  const TextColumnApi* api_ = nullptr;
  absl::Status opened_;  // of api_
  std::list<Open> open_;
  std::string answer_;
  int64_t taken_ = 0;  // rows that are in it
};

class ParquetTexts final : public Texts {
 public:
  ParquetTexts(const std::string& field, std::string library)
      : field_(field), library_(std::move(library)) {}

  ~ParquetTexts() override {
    if (owner_ == getpid()) return;
    for (auto& child : idle_) child.release();  // another process's
  }

  void EndHelpers() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (owner_ == getpid()) idle_.clear();
  }

  absl::Status ReadFooters(std::vector<Shard>* shards) {
    for (size_t i = 0; i < shards->size(); ++i) {
      Shard& shard = (*shards)[i];
      if (shard.remote != nullptr) {
        if (i % kFootersAtOnce == 0) {
          CAPSTAN_RETURN_IF_ERROR(EnsureEnds(*shards, i));
        }
        CAPSTAN_RETURN_IF_ERROR(EnsureFooter(shard));
      }
      const absl::StatusOr<std::string> answer =
          Ask(shard, Request::kFacts, 0, 0);
      CAPSTAN_RETURN_IF_ERROR(answer.status());
      absl::string_view rest = *answer;
      shard.units = TakeNumber(&rest);
      const int64_t bytes = TakeNumber(&rest);
      if (shard.units <= 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            shard.path, " has no rows: remove it, or make it again"));
      }
      shard.weight = std::max<int64_t>(1, bytes);
      const int64_t of_row = std::max<int64_t>(1, bytes / shard.units);
      shard.per_cell =
          std::max<int64_t>(1, std::min(kMostRows, kCellBytes / of_row));
      shard.cells = (shard.units + shard.per_cell - 1) / shard.per_cell;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Document>> Read(const Shard& shard,
                                             int64_t cell) override {
    CAPSTAN_RETURN_IF_ERROR(CheckUnchanged(shard));
    const int64_t first = cell * shard.per_cell;
    const int64_t count = std::min(shard.per_cell, shard.units - first);
    if (shard.remote != nullptr) {
      const absl::StatusOr<std::string> place =
          Ask(shard, Request::kPlace, first, count);
      CAPSTAN_RETURN_IF_ERROR(place.status());
      absl::string_view numbers = *place;
      const int64_t begin = TakeNumber(&numbers);
      const int64_t end = TakeNumber(&numbers);
      if (begin < 0 || end <= begin || end > shard.bytes) {
        return absl::DataLossError(absl::StrCat(
            shard.path, " is damaged: its footer says that rows lie at bytes ",
            begin, " to ", end));
      }
      CAPSTAN_RETURN_IF_ERROR(Ensure(shard, begin, end - begin));
    }
    std::vector<Document> documents;
    while (static_cast<int64_t>(documents.size()) < count) {
      const auto there = static_cast<int64_t>(documents.size());
      const absl::StatusOr<std::string> answer =
          Ask(shard, Request::kTexts, first + there, count - there);
      CAPSTAN_RETURN_IF_ERROR(answer.status());
      if (answer->empty()) {
        return absl::InternalError(
            absl::StrCat(shard.path, ": no row was read"));
      }
      TakeDocuments(*answer, first + there, &documents);
    }
    return documents;
  }

  std::string PlaceOf(const Shard& shard, int64_t place) const override {
    return absl::StrCat(shard.path, ", row ", place);
  }

 private:
  void TakeDocuments(absl::string_view rest, int64_t row,
                     std::vector<Document>* documents) const {
    while (!rest.empty()) {
      Document document;
      document.place = row++;
      const int64_t size = TakeNumber(&rest);
      if (size == kTooLong) {
        document.bad = TooLong(TakeNumber(&rest));
      } else if (size < 0) {
        document.bad = absl::InvalidArgumentError(
            absl::StrCat("has no text in \"", field_, "\" (null)"));
      } else {
        document.text = std::string(rest.substr(0, static_cast<size_t>(size)));
        rest.remove_prefix(document.text.size());
      }
      documents->push_back(std::move(document));
    }
  }

  // The ends of some shards from `first` on, at once.
  static absl::Status EnsureEnds(const std::vector<Shard>& shards,
                                 size_t first) {
    std::vector<RemoteShards::Part> parts;
    for (size_t i = first; i < std::min(first + kFootersAtOnce, shards.size());
         ++i) {
      const int64_t size = std::min(kEnd, shards[i].bytes);
      parts.push_back({shards[i].object, shards[i].bytes - size, size});
    }
    return shards[first].remote->Ensure(parts);
  }

  // The footer, however long: its length lies before the last four bytes.
  static absl::Status EnsureFooter(const Shard& shard) {
    uint32_t size = 0;
    char end[8] = {};
    if (shard.bytes >= 12) {
      CAPSTAN_ASSIGN_OR_RETURN(const auto file, ShardFile::Open(shard));
      CAPSTAN_RETURN_IF_ERROR(file->Read(shard.bytes - 8, 8, end));
      std::memcpy(&size, end, sizeof(size));
    }
    if (absl::string_view(end + 4, 4) != "PAR1" || size > shard.bytes - 12) {
      return WithCode(absl::DataLossError(absl::StrCat(
                          shard.path,
                          " is cut off: it doesn't end with Parquet's footer: "
                          "fetch or make it again")),
                      "data/damaged");
    }
    return Ensure(shard, shard.bytes - 8 - size, size);
  }

  absl::StatusOr<std::string> Ask(const Shard& shard, Request::What what,
                                  int64_t first, int64_t count) {
    Request request;
    request.what = what;
    request.first = first;
    request.count = count;
    request.path_bytes = static_cast<int64_t>(shard.file.size());
    const std::string bytes =
        absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&request),
                                       sizeof(request)),
                     shard.file);
    // An idle child may have ended with the thread that has started it.
    for (int tries = 0;; ++tries) {
      CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<ConfinedChild> child,
                               tries == 0 ? Take() : Start());
      const absl::Status sent = child->Send(bytes);
      absl::StatusOr<std::string> answer =
          child->ended() ? absl::StatusOr<std::string>(sent)
                         : child->Receive(kMostAnswer);
      if (!child->ended()) {
        Give(std::move(child));
        if (answer.ok()) return answer;
        if (absl::IsUnimplemented(answer.status())) return answer.status();
        if (absl::IsResourceExhausted(answer.status())) {
          return absl::ResourceExhaustedError(absl::StrCat(
              shard.path, ": to read what lies from row ", first, " on, ",
              answer.status().message(),
              " (6 GiB): write the file with smaller pages or row groups"));
        }
        const std::string why = OneLine(answer.status().message());
        if (absl::IsInvalidArgument(answer.status())) {
          return absl::InvalidArgumentError(
              absl::StrCat(shard.path, ": ", why, ": set text_field"));
        }
        return WithCode(
            absl::DataLossError(absl::StrCat(
                shard.path, " can't be read as Parquet: ", why,
                count == 0 ? "" : absl::StrCat(" (from row ", first, " on)"))),
            "data/damaged");
      }
      if (tries == 0) continue;
      return WithCode(
          absl::DataLossError(absl::StrCat(
              shard.path,
              " can't be read as Parquet: it is damaged in a way that ends "
              "Arrow (from row ",
              first, " on): the process that reads it ",
              answer.status().message())),
          "data/damaged");
    }
  }

  absl::StatusOr<std::unique_ptr<ConfinedChild>> Take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (owner_ != getpid()) {
        // Those of the process that this one is a fork of.
        for (auto& child : idle_) child.release();
        idle_.clear();
        owner_ = getpid();
      }
      if (!idle_.empty()) {
        std::unique_ptr<ConfinedChild> child = std::move(idle_.back());
        idle_.pop_back();
        return child;
      }
    }
    return Start();
  }

  absl::StatusOr<std::unique_ptr<ConfinedChild>> Start() {
    ChildLimits limits;
    limits.bytes = int64_t{6} << 30;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    limits.bytes = int64_t{1} << 60;  // shadows need address space
#endif
    limits.cpu_seconds = 3600;
    return ConfinedChild::Start(limits,
                                [this](const ConfinedChild::Parent& parent) {
                                  Server(parent, field_).Serve(library_);
                                });
  }

  void Give(std::unique_ptr<ConfinedChild> child) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(child));
  }

  const std::string field_;
  const std::string library_;
  std::mutex mutex_;
  pid_t owner_ = 0;  // the process that has forked them
  std::vector<std::unique_ptr<ConfinedChild>> idle_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Texts>> NewParquetTexts(
    const std::string& field, std::vector<Shard>* shards) {
  const char* const set = std::getenv("CAPSTAN_TABLES_LIBRARY");
  std::string library = set == nullptr ? "" : set;
  if (library.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(
        library,
        OwnLibrary(kTablesLibrary, "datasets/tables", "the reader of Parquet"));
  }
  if (library.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        (*shards)[0].path, " is Parquet, which is read by Arrow, and ",
        kTablesLibrary,
        " isn't part of this build: build where the Python package pyarrow can "
        "be fetched (docs/chat_data.md), or convert the shards to JSON lines"));
  }
  auto texts = std::make_unique<ParquetTexts>(field, std::move(library));
  CAPSTAN_RETURN_IF_ERROR(texts->ReadFooters(shards));
  return std::unique_ptr<Texts>(std::move(texts));
}

}  // namespace capstan::stream
