// SPDX-License-Identifier: Apache-2.0
//
// An offline run of W&B: wandb/offline-run-TIME-ID/run-ID.wandb, which `wandb
// sync` uploads. The file is LevelDB's log format (log_format.md of LevelDB:
// blocks of 32 KiB, records in fragments) with a header of its own, and CRC-32
// instead of CRC-32C; its records are wandb_record.proto's.
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "cluster/launch/network.h"
#include "desk/track/sink.h"
#include "desk/track/wandb_record.pb.h"

namespace capstan::track {
namespace {

// ":W&B", 0xBEE1 and the version 0.
constexpr char kFileHeader[] = {':', 'W', '&', 'B', '\xe1', '\xbe', '\0'};
constexpr size_t kBlockBytes = 32768;
constexpr size_t kHeaderBytes = 7;  // checksum, length, type
enum FragmentType : unsigned char { kFull = 1, kFirst, kMiddle, kLast };

uint32_t Checksum(unsigned char type, absl::string_view bytes) {
  const uLong of_type = crc32(0, &type, 1);
  return static_cast<uint32_t>(
      crc32(of_type, reinterpret_cast<const Bytef*>(bytes.data()),
            static_cast<uInt>(bytes.size())));
}

// The record, as it is at `offset` of the file.
std::string Framed(absl::string_view record, size_t offset) {
  std::string framed;
  bool first = true;
  do {
    size_t left = kBlockBytes - (offset + framed.size()) % kBlockBytes;
    if (left < kHeaderBytes) {
      framed.append(left, '\0');
      left = kBlockBytes;
    }
    const absl::string_view part = record.substr(0, left - kHeaderBytes);
    record.remove_prefix(part.size());
    const unsigned char type = first ? (record.empty() ? kFull : kFirst)
                                     : (record.empty() ? kLast : kMiddle);
    char header[kHeaderBytes];
    const uint32_t checksum = Checksum(type, part);
    const auto bytes = static_cast<uint16_t>(part.size());
    std::memcpy(header, &checksum, sizeof(checksum));  // little-endian, as here
    std::memcpy(header + sizeof(checksum), &bytes, sizeof(bytes));
    header[6] = static_cast<char>(type);
    framed.append(header, kHeaderBytes);
    absl::StrAppend(&framed, part);
    first = false;
  } while (!record.empty());
  return framed;
}

// Reads the record at *offset and moves behind it; nullopt at the file's end,
// or where it was cut.
absl::optional<std::string> NextRecord(absl::string_view file, size_t* offset) {
  std::string record;
  size_t at = *offset;
  while (true) {
    const size_t left = kBlockBytes - at % kBlockBytes;
    if (left < kHeaderBytes) at += left;
    if (at + kHeaderBytes > file.size()) return absl::nullopt;
    const char* const header = file.data() + at;
    uint32_t checksum = 0;
    uint16_t bytes = 0;
    std::memcpy(&checksum, header, sizeof(checksum));
    std::memcpy(&bytes, header + sizeof(checksum), sizeof(bytes));
    const auto type = static_cast<unsigned char>(header[6]);
    at += kHeaderBytes;
    if (at + bytes > file.size()) return absl::nullopt;
    const absl::string_view part = file.substr(at, bytes);
    if (checksum != Checksum(type, part)) {
      return absl::nullopt;
    }
    at += bytes;
    absl::StrAppend(&record, part);
    if (type == kFull || type == kLast) break;
  }
  *offset = at;
  return record;
}

// As W&B's own client writes one that JSON doesn't have.
std::string JsonNumber(double value) {
  return std::isfinite(value) ? NumberText(value) : "NaN";
}

template <typename Items>
void AddItem(absl::string_view key, const std::string& json, Items* items) {
  wandb::Item* const item = items->Add();
  item->set_key(std::string(key));
  item->set_value_json(json);
}

// The file itself says how far it is: its last step.
class Wandb : public Sink {
 public:
  std::string place() const override { return Variable("WANDB_DIR"); }
  std::string file() const override { return path_; }

  absl::StatusOr<int64_t> Open(const TrackedRun& run) override {
    run_ = run;
    output_.reset();
    const std::string folder = Folder();
    path_ = absl::StrCat(folder, "/run-", run.id, ".wandb");
    CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder + "/files"));
    next_ = 1;
    last_.clear();
    finished_ = false;
    bytes_ = 0;
    int64_t step = kNoStep;
    if (PathExists(path_)) {
      CAPSTAN_ASSIGN_OR_RETURN(step, GoOn());
    }
    return step;
  }

  absl::Status Send(const std::vector<Row>& rows) override {
    CAPSTAN_RETURN_IF_ERROR(Begin());
    std::string text;
    for (const Row& row : rows) {
      wandb::Record record;
      auto* const items = record.mutable_history()->mutable_item();
      for (const auto& [name, value] : row.metrics) {
        AddItem(name, JsonNumber(value), items);
      }
      for (const Event& event : row.events) {
        AddItem(absl::StrCat("event/", event.kind),
                JsonText(nlohmann::ordered_json(event.text)), items);
      }
      AddItem("_step", absl::StrCat(row.step), items);
      AddItem("_timestamp", JsonNumber(row.time), items);
      AddItem("_runtime", JsonNumber(row.time - run_.start_time), items);
      record.mutable_history()->mutable_step()->set_num(row.step);
      Keep(record.history());
      Frame(&record, &text);
    }
    finished_ = false;
    return output_->Append(text);
  }

  absl::Status Finish(const RunState& state,
                      const std::vector<Event>&) override {
    if (finished_) return absl::OkStatus();
    CAPSTAN_RETURN_IF_ERROR(Begin());
    std::string text;
    wandb::Record record;
    auto* const items = record.mutable_summary()->mutable_update();
    for (const auto& [name, json] : last_) AddItem(name, json, items);
    for (const auto& item : state.summary.items()) {
      if (!item.value().is_primitive() || last_.count(item.key()) > 0) continue;
      AddItem(item.key(), JsonText(item.value()), items);
    }
    Frame(&record, &text);
    record.Clear();
    const bool well = state.status == "completed" || state.status == "stopped";
    record.mutable_exit()->set_exit_code(well ? 0 : 1);
    Frame(&record, &text);
    finished_ = true;
    return output_->Append(text);
  }

 private:
  // Where the run is already, whatever its time is in this time zone; else a
  // new one. A row that was sent belongs to it, even if it was moved.
  std::string Folder() const {
    const std::string root = Variable("WANDB_DIR");
    const std::string parent = (root.empty() ? "" : root + "/") + "wandb";
    const std::string end = absl::StrCat("-", run_.id);
    std::error_code error;
    for (std::filesystem::directory_iterator entry(parent, error), last;
         !error && entry != last; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (absl::StartsWith(name, "offline-run-") && absl::EndsWith(name, end)) {
        return entry->path().string();
      }
    }
    return absl::StrCat(
        parent, "/offline-run-",
        absl::FormatTime("%Y%m%d_%H%M%S",
                         absl::UnixEpoch() + absl::Seconds(run_.start_time),
                         absl::LocalTimeZone()),
        end);
  }

  // Finds the end of the last step's record. What is behind it is an end that a
  // resumed run has made wrong, or was cut.
  absl::StatusOr<int64_t> GoOn() {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string file, ReadWholeFile(path_));
    int64_t step = kNoStep;
    if (!absl::StartsWith(file, {kFileHeader, sizeof(kFileHeader)})) {
      return step;
    }
    size_t offset = sizeof(kFileHeader);
    int64_t count = 0;
    wandb::Record record;
    while (const absl::optional<std::string> bytes =
               NextRecord(file, &offset)) {
      if (!record.ParseFromString(*bytes)) break;
      ++count;
      finished_ = record.has_exit() && offset == file.size();
      if (!record.has_run() && !record.has_history()) continue;
      bytes_ = offset;
      next_ = count + 1;
      if (!record.has_history()) continue;
      step = record.history().step().num();
      Keep(record.history());
    }
    return step;
  }

  // Opens the file behind the last record that holds, and writes the first ones
  // if there is none.
  absl::Status Begin() {
    if (output_.has_value()) return absl::OkStatus();
    std::string text;
    if (bytes_ == 0) {
      text.assign(kFileHeader, sizeof(kFileHeader));
      AppendFirst(&text);
      CAPSTAN_RETURN_IF_ERROR(ReplaceFile(path_, text));
    } else {
      std::error_code error;
      std::filesystem::resize_file(path_, bytes_, error);
      if (error) return WriteError(path_, error.value());
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        OutputFile output, OutputFile::Open(path_, OutputFile::Start::kAtEnd));
    output_.emplace(std::move(output));
    return absl::OkStatus();
  }

  void AppendFirst(std::string* text) {
    bytes_ = sizeof(kFileHeader);
    wandb::Record record;
    wandb::Version* const version =
        record.mutable_header()->mutable_version_info();
    version->set_producer("capstan");
    version->set_min_consumer("0.12.0");
    Frame(&record, text);
    record.Clear();
    wandb::Run* const run = record.mutable_run();
    run->set_run_id(run_.id);
    run->set_project(run_.project);
    run->set_entity(Variable("WANDB_ENTITY"));
    run->set_run_group(Variable("WANDB_RUN_GROUP"));
    run->set_display_name(run_.name);
    run->set_host(HostName());
    run->mutable_start_time()->set_seconds(
        static_cast<int64_t>(std::floor(run_.start_time)));
    for (const auto& [name, value] : run_.settings) {
      AddItem(name, JsonText(SettingJson(value)),
              run->mutable_config()->mutable_update());
    }
    Frame(&record, text);
  }

  void Frame(wandb::Record* record, std::string* text) {
    record->set_num(next_++);
    const std::string framed = Framed(record->SerializeAsString(), bytes_);
    bytes_ += framed.size();
    absl::StrAppend(text, framed);
  }

  void Keep(const wandb::History& history) {
    for (const wandb::Item& item : history.item()) {
      last_[item.key()] = item.value_json();
    }
  }

  TrackedRun run_;
  std::string path_;
  absl::optional<OutputFile> output_;
  size_t bytes_ = 0;  // of the file, without a cut end
  int64_t next_ = 1;  // record
  bool finished_ = false;
  std::map<std::string, std::string> last_;  // newest values, for the summary
};

}  // namespace

std::unique_ptr<Sink> MakeWandb() { return std::make_unique<Wandb>(); }

}  // namespace capstan::track
