// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/state_file.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {
namespace {

int64_t ElementBytes(c10::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t Chunks(int64_t bytes) {
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

// Appends a piece by chunks, computing each checksum while it is in the cache.
absl::Status AppendPiece(const at::Tensor& elements, SafetensorsWriter* writer,
                         std::vector<uint32_t>* crc32c) {
  const int64_t size = ElementBytes(elements.scalar_type());
  const int64_t step = kChunkBytes / size;
  for (int64_t begin = 0; begin < elements.numel(); begin += step) {
    const int64_t count = std::min(step, elements.numel() - begin);
    // No copy if already in host memory.
    const at::Tensor chunk =
        elements.narrow(0, begin, count).to(at::kCPU).contiguous();
    const char* bytes = static_cast<const char*>(chunk.data_ptr());
    crc32c->push_back(Crc32c({bytes, static_cast<size_t>(count * size)}));
    CAPSTAN_RETURN_IF_ERROR(writer->Append(bytes, count * size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ManifestFile> WriteStateFile(
    const std::string& folder, const std::string& name,
    const std::vector<StatePiece>& pieces) {
  ManifestFile file;
  file.name = name;
  const std::string path = absl::StrCat(folder, "/", name);
  CAPSTAN_ASSIGN_OR_RETURN(const auto writer, SafetensorsWriter::Create(path));
  for (const StatePiece& piece : pieces) {
    writer->Declare(piece.range.Key(), piece.elements.scalar_type(),
                    {piece.range.length});
  }
  for (const StatePiece& piece : pieces) {
    file.ranges.push_back(piece.range);
    ManifestRange& range = file.ranges.back();
    CAPSTAN_ASSIGN_OR_RETURN(
        range.dtype, SafetensorsDtypeName(piece.elements.scalar_type()));
    CAPSTAN_RETURN_IF_ERROR(
        AppendPiece(piece.elements, writer.get(), &range.crc32c));
  }
  CAPSTAN_RETURN_IF_ERROR(writer->Close());
  CAPSTAN_ASSIGN_OR_RETURN(const auto written, InputFile::Open(path));
  CAPSTAN_ASSIGN_OR_RETURN(file.bytes, written->Bytes());
  return file;
}

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Open(
    const std::string& folder, const ManifestFile& file) {
  std::unique_ptr<StateFile> opened(
      new StateFile(absl::StrCat(folder, "/", file.name)));
  CAPSTAN_RETURN_IF_ERROR(opened->ReadHeader(file));
  return opened;
}

std::unique_ptr<StateFile> StateFile::WithoutHeader(
    std::string name,
    std::function<absl::Status(int64_t offset, int64_t bytes, char* out)> read,
    std::map<std::string, Place> places) {
  std::unique_ptr<StateFile> opened(new StateFile(std::move(name)));
  opened->places_ = std::move(places);
  opened->read_ = std::move(read);
  return opened;
}

absl::Status StateFile::ReadHeader(const ManifestFile& file) {
  absl::StatusOr<std::unique_ptr<InputFile>> input = InputFile::Open(path_);
  if (absl::IsNotFound(input.status())) {
    return DamagedError(
        path_, absl::StrCat(kManifestFile, " names it, and it isn't there"));
  }
  CAPSTAN_RETURN_IF_ERROR(input.status());
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t bytes, (*input)->Bytes());
  if (bytes != file.bytes) {
    return DamagedError(path_,
                        absl::StrFormat("it has %d bytes, %s says %d", bytes,
                                        kManifestFile, file.bytes));
  }
  const auto opened = SafetensorsReader::Open(path_);
  if (!opened.ok()) {
    return DamagedError(
        path_, absl::StripPrefix(opened.status().message(), path_ + ": "));
  }
  const std::map<std::string, TensorEntry>& tensors = (*opened)->tensors();
  // Open checked that the tensors fill the end of the file without gaps.
  const char* first = nullptr;
  int64_t data_bytes = 0;
  for (const auto& [name, entry] : tensors) {
    if (first == nullptr || entry.data < first) first = entry.data;
    data_bytes += entry.bytes;
  }
  for (const auto& [name, entry] : tensors) {
    places_[name] = {entry.dtype, entry.numel,
                     bytes - data_bytes + (entry.data - first), entry.bytes};
  }
  return absl::OkStatus();
}

absl::Status StateFile::Check(const ManifestRange& range) const {
  const std::string key = range.Key();
  const auto found = places_.find(key);
  if (found == places_.end()) {
    return DamagedError(path_, absl::StrFormat("it has no tensor '%s'", key));
  }
  const Place& place = found->second;
  const absl::StatusOr<std::string> dtype = SafetensorsDtypeName(place.dtype);
  if (!dtype.ok() || *dtype != range.dtype) {
    return DamagedError(
        path_, absl::StrFormat("its tensor '%s' is %s, %s says %s", key,
                               dtype.value_or("of another type"), kManifestFile,
                               range.dtype));
  }
  const int64_t checksums = read_ == nullptr ? Chunks(place.bytes) : 0;
  if (place.numel != range.length ||
      static_cast<int64_t>(range.crc32c.size()) != checksums) {
    return DamagedError(
        path_,
        absl::StrFormat("its tensor '%s' has %d elements with %d checksums, %s "
                        "says %d with %d",
                        key, place.numel, checksums, kManifestFile,
                        range.length, range.crc32c.size()));
  }
  return absl::OkStatus();
}

absl::Status StateFile::Read(const ManifestRange& range, int64_t begin,
                             const at::Tensor& out) {
  const Place& place = places_.at(range.Key());
  const int64_t size = ElementBytes(place.dtype);
  const int64_t chunk_elements = kChunkBytes / size;
  const bool as_stored =
      out.is_cpu() && out.is_contiguous() && out.scalar_type() == place.dtype;
  int64_t done = 0;
  while (done < out.numel()) {
    const int64_t from = begin - range.begin + done;  // offset in the range
    const int64_t index = from / chunk_elements;
    const int64_t skip = from - index * chunk_elements;
    const int64_t bytes = ChunkBytes(place, index);
    const int64_t count = std::min(bytes / size - skip, out.numel() - done);
    if (as_stored && count * size == bytes) {
      CAPSTAN_RETURN_IF_ERROR(
          ReadChunk(range, place, index,
                    static_cast<char*>(out.mutable_data_ptr()) + done * size));
    } else {
      char* const buffer = Buffer(bytes);
      CAPSTAN_RETURN_IF_ERROR(ReadChunk(range, place, index, buffer));
      out.narrow(0, done, count)
          .copy_(at::from_blob(buffer + skip * size, {count}, place.dtype));
    }
    done += count;
  }
  return absl::OkStatus();
}

absl::Status StateFile::Verify(const ManifestRange& range) {
  const Place& place = places_.at(range.Key());
  for (int64_t index = 0; index < Chunks(place.bytes); ++index) {
    CAPSTAN_RETURN_IF_ERROR(
        ReadChunk(range, place, index, Buffer(ChunkBytes(place, index))));
  }
  return absl::OkStatus();
}

int64_t StateFile::ChunkBytes(const Place& place, int64_t index) {
  return std::min(kChunkBytes, place.bytes - index * kChunkBytes);
}

char* StateFile::Buffer(int64_t bytes) {
  if (static_cast<int64_t>(buffer_.size()) < bytes) buffer_.resize(bytes);
  return buffer_.data();
}

absl::Status StateFile::ReadChunk(const ManifestRange& range,
                                  const Place& place, int64_t index,
                                  char* out) {
  const int64_t skip = index * kChunkBytes;
  const int64_t bytes = ChunkBytes(place, index);
  if (read_ != nullptr) return read_(place.offset + skip, bytes, out);
  if (file_ == nullptr) {
    CAPSTAN_ASSIGN_OR_RETURN(file_, InputFile::Open(path_));
  }
  CAPSTAN_RETURN_IF_ERROR(file_->ReadAt(place.offset + skip, bytes, out));
  const uint32_t crc = Crc32c({out, static_cast<size_t>(bytes)});
  if (crc != range.crc32c[index]) {
    return DamagedError(
        path_, absl::StrFormat(
                   "CRC-32C of bytes %d to %d of its tensor '%s' is %08x, %s "
                   "says %08x",
                   skip, skip + bytes - 1, range.Key(), crc, kManifestFile,
                   range.crc32c[index]));
  }
  return absl::OkStatus();
}

void StateFile::Close() {
  file_.reset();
  buffer_ = {};
}

absl::Status CheckFiles(const std::string& folder, const Manifest& manifest,
                        bool checksums) {
  return CatchAll([&]() -> absl::Status {
    for (const ManifestFile& file : manifest.files) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<StateFile> opened,
                               StateFile::Open(folder, file));
      for (const ManifestRange& range : file.ranges) {
        CAPSTAN_RETURN_IF_ERROR(opened->Check(range));
        if (checksums) CAPSTAN_RETURN_IF_ERROR(opened->Verify(range));
      }
    }
    return absl::OkStatus();
  });
}

absl::Status VerifyCheckpoint(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  return CheckFiles(folder, manifest, /*checksums=*/true);
}

}  // namespace capstan
