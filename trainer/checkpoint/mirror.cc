// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/mirror.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/save.h"
#include "trainer/checkpoint/state_file.h"
#include "trainer/checkpoint/stored_state.h"
#include "trainer/process_group/agree.h"

namespace capstan {
namespace {

constexpr int64_t kPage = 4096;
constexpr char kMagic[8] = "capsmir";

// At the start of an image.
struct Header {
  char magic[8];
  uint32_t crc32c;  // of the rest, if the image is whole
  int32_t restart;
  int32_t rank;
  int32_t world_size;
  int64_t sequence;
  int64_t layout_bytes;
  int64_t data_begin;
  // The train state as JSON, behind the layout.
  int64_t state_begin;
  int64_t state_bytes;
  uint32_t state_crc32c;
};
static_assert(sizeof(Header) <= kPage, "");

// Room for the train state, of which recent losses and bad samples may be many.
// A step whose state doesn't fit isn't mirrored.
constexpr int64_t kStateRoom = 1 << 20;

uint32_t CrcOf(const Header& header) {
  constexpr size_t kSkipped = offsetof(Header, restart);
  return Crc32c({reinterpret_cast<const char*>(&header) + kSkipped,
                 sizeof(header) - kSkipped});
}

std::string PathOf(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

// The header of a whole image; unset if there is none in the file.
absl::optional<Header> ReadHeader(int fd) {
  Header header;
  if (pread(fd, &header, sizeof(header), 0) !=
          static_cast<ssize_t>(sizeof(header)) ||
      std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 ||
      header.crc32c != CrcOf(header)) {
    return absl::nullopt;
  }
  return header;
}

// Unset if the file has no whole image.
absl::optional<TrainState> ReadState(int fd) {
  const absl::optional<Header> header = ReadHeader(fd);
  if (!header.has_value()) return absl::nullopt;
  std::string text(static_cast<size_t>(header->state_bytes), '\0');
  if (pread(fd, &text[0], text.size(), header->state_begin) !=
          static_cast<ssize_t>(text.size()) ||
      Crc32c(text) != header->state_crc32c) {
    return absl::nullopt;
  }
  absl::StatusOr<TrainState> state = TrainStateFromText(text, PathOf(fd));
  if (!state.ok()) return absl::nullopt;
  return *std::move(state);
}

// An image's layout as text: a manifest with the rank's ranges and, behind it,
// the offset of each from the start of the data.
std::string LayoutText(const std::vector<StatePiece>& pieces,
                       const PieceLayout& layout,
                       const CheckpointParts& parts) {
  Manifest manifest = ManifestFrame(TrainState(), parts);
  ManifestFile file;
  file.name = RankFileName(parts.group->rank(), parts.group->size());
  file.bytes = layout.bytes;
  for (const StatePiece& piece : pieces) {
    file.ranges.push_back(piece.range);
    file.ranges.back().dtype =
        SafetensorsDtypeName(piece.elements.scalar_type()).value_or("");
  }
  manifest.files.push_back(std::move(file));
  std::string text = ManifestToJson(manifest);
  text.push_back('\0');
  text.append(reinterpret_cast<const char*>(layout.offsets.data()),
              layout.offsets.size() * sizeof(int64_t));
  return text;
}

struct ReadLayout {
  Manifest manifest;
  std::map<std::string, StateFile::Place> places;
};

absl::StatusOr<ReadLayout> LayoutOf(int fd) {
  const std::string path = PathOf(fd);
  const absl::optional<Header> header = ReadHeader(fd);
  if (!header.has_value()) {
    return absl::DataLossError(absl::StrCat(path, " has no whole mirror"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  std::string text(static_cast<size_t>(header->layout_bytes), '\0');
  CAPSTAN_RETURN_IF_ERROR(file->ReadAt(kPage, header->layout_bytes, &text[0]));
  const size_t json = text.find('\0');
  ReadLayout read;
  CAPSTAN_ASSIGN_OR_RETURN(
      read.manifest,
      ManifestFromJson(absl::string_view(text).substr(0, json), path));
  absl::optional<TrainState> state = ReadState(fd);
  if (!state.has_value()) {
    return absl::DataLossError(absl::StrCat(path, " has no whole mirror"));
  }
  read.manifest.train_state = *std::move(state);
  const std::vector<ManifestRange>& ranges = read.manifest.files[0].ranges;
  std::vector<int64_t> offsets(ranges.size());
  if (text.size() - json - 1 != offsets.size() * sizeof(int64_t)) {
    return absl::DataLossError(absl::StrCat(path, " has no whole mirror"));
  }
  std::memcpy(offsets.data(), &text[json + 1], text.size() - json - 1);
  for (size_t i = 0; i < ranges.size(); ++i) {
    StateFile::Place place;
    CAPSTAN_ASSIGN_OR_RETURN(place.dtype, SafetensorsDtype(ranges[i].dtype));
    place.numel = ranges[i].length;
    place.offset = header->data_begin + offsets[i];
    place.bytes =
        place.numel * static_cast<int64_t>(c10::elementSize(place.dtype));
    read.places[ranges[i].Key()] = place;
  }
  return read;
}

// The images of `step` as one checkpoint.
absl::StatusOr<StoredState> StoredIn(const MirroredStep& step) {
  StoredState stored;
  stored.name = absl::StrCat("the mirror of step ", step.state.step);
  auto opened = std::make_shared<std::map<
      std::string, std::pair<int, std::map<std::string, StateFile::Place>>>>();
  for (size_t rank = 0; rank < step.fds.size(); ++rank) {
    CAPSTAN_ASSIGN_OR_RETURN(ReadLayout read, LayoutOf(step.fds[rank]));
    ManifestFile file = std::move(read.manifest.files[0]);
    (*opened)[file.name] = {step.fds[rank], std::move(read.places)};
    if (rank == 0) {
      stored.manifest = std::move(read.manifest);
      stored.manifest.files.clear();
    }
    stored.manifest.files.push_back(std::move(file));
  }
  const absl::Status status = CheckManifest(stored.manifest);
  if (!status.ok()) return Annotate(status, stored.name);
  stored.open = [opened](const ManifestFile& file)
      -> absl::StatusOr<std::unique_ptr<StateFile>> {
    const auto& [fd, places] = opened->at(file.name);
    return StateFile::WithoutHeader(PathOf(fd), places);
  };
  return stored;
}

int64_t RoundUp(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

int64_t ImageBytes(const PieceLayout& layout, const std::string& text) {
  return kPage + RoundUp(static_cast<int64_t>(text.size())) + kStateRoom +
         layout.bytes;
}

}  // namespace

bool MirroredStep::operator==(const MirroredStep& other) const {
  return restart == other.restart && sequence == other.sequence;
}

absl::optional<MirroredStep> NewestMirroredStep(const std::vector<int>& fds) {
  // By {restart, sequence}.
  std::map<std::pair<int, int64_t>, MirroredStep> steps;
  for (const int fd : fds) {
    const absl::optional<Header> header = ReadHeader(fd);
    absl::optional<TrainState> state = ReadState(fd);
    if (!header.has_value() || !state.has_value()) continue;
    MirroredStep& step = steps[{header->restart, header->sequence}];
    step.restart = header->restart;
    step.sequence = header->sequence;
    step.state = *std::move(state);
    step.fds.resize(header->world_size, -1);
    step.fds[header->rank] = fd;
  }
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    const std::vector<int>& images = it->second.fds;
    if (std::find(images.begin(), images.end(), -1) == images.end()) {
      return it->second;
    }
  }
  return absl::nullopt;
}

absl::StatusOr<TrainState> LoadMirroredStep(const MirroredStep& step,
                                            const CheckpointParts& parts) {
  TrainState state;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    const absl::Status mine = CatchAll([&]() -> absl::Status {
      CAPSTAN_ASSIGN_OR_RETURN(const StoredState stored, StoredIn(step));
      return LoadState(stored, parts, &state);
    });
    return Agree(*parts.group, mine, [&](int) {
      return absl::StrCat("read the mirror of step ", step.state.step);
    });
  }));
  return state;
}

Mirror::Mirror(std::vector<int> fds, int restart,
               const absl::optional<MirroredStep>& source)
    : images_(fds.size()), restart_(restart) {
  for (size_t i = 0; i < fds.size(); ++i) {
    images_[i].fd = fds[i];
    if (!source.has_value()) continue;
    const auto& kept = source->fds;
    if (std::find(kept.begin(), kept.end(), fds[i]) != kept.end()) {
      next_ = static_cast<int>(1 - i);
    }
  }
}

Mirror::~Mirror() {
  for (const Image& image : images_) {
    if (image.memory != nullptr) munmap(image.memory, image.bytes);
  }
}

int64_t Mirror::BytesToAllocate(const CheckpointParts& parts) const {
  const std::vector<StatePiece> pieces = OwnedPieces(parts);
  const PieceLayout layout(pieces);
  const int64_t bytes = ImageBytes(layout, LayoutText(pieces, layout, parts));
  int64_t missing = 0;
  for (const Image& image : images_) {
    struct stat info = {};
    if (fstat(image.fd, &info) != 0) continue;
    missing += std::max<int64_t>(0, bytes - info.st_blocks * int64_t{512});
  }
  return missing;
}

absl::Status Mirror::Map(int64_t bytes, Image* image) {
  struct stat info = {};
  if (fstat(image->fd, &info) != 0) {
    return absl::ErrnoToStatus(errno, "the mirror's file");
  }
  // Never shorter: the other ranks may be reading it. Without memory for a page
  // a write to the mapping would kill the process.
  bytes = std::max<int64_t>(bytes, info.st_size);
  const int error = posix_fallocate(image->fd, 0, bytes);
  if (error != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for a mirror of ", bytes, " bytes: ", std::strerror(error)));
  }
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, image->fd, 0);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "the mirror can't be mapped");
  }
  image->memory = static_cast<char*>(memory);
  image->bytes = bytes;
  return absl::OkStatus();
}

absl::Status Mirror::Allocate(const CheckpointParts& parts) {
  const std::vector<StatePiece> pieces = OwnedPieces(parts);
  const PieceLayout layout(pieces);
  const int64_t bytes = ImageBytes(layout, LayoutText(pieces, layout, parts));
  for (Image& image : images_) {
    CAPSTAN_RETURN_IF_ERROR(Map(bytes, &image));
  }
  return absl::OkStatus();
}

void Mirror::Copy(const TrainState& state, const CheckpointParts& parts) {
  Image& image = images_[next_];
  next_ = 1 - next_;
  const std::vector<StatePiece> pieces = OwnedPieces(parts);
  const PieceLayout layout(pieces);
  auto* const header = reinterpret_cast<Header*>(image.memory);
  std::memset(header->magic, 0, sizeof(header->magic));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // The layout is the same at each step.
  if (image.layout.empty()) {
    image.layout = LayoutText(pieces, layout, parts);
    std::memcpy(image.memory + kPage, image.layout.data(), image.layout.size());
  }
  // Bytes between fields count in the checksum, too.
  Header next;
  std::memset(static_cast<void*>(&next), 0, sizeof(next));
  next.restart = restart_;
  next.rank = parts.group->rank();
  next.world_size = parts.group->size();
  next.sequence = ++sequence_;
  next.layout_bytes = static_cast<int64_t>(image.layout.size());
  next.state_begin = kPage + RoundUp(next.layout_bytes);
  next.data_begin = next.state_begin + kStateRoom;
  const std::string state_text = TrainStateText(state);
  next.state_bytes = static_cast<int64_t>(state_text.size());
  next.state_crc32c = Crc32c(state_text);
  if (next.state_bytes > kStateRoom) return;
  std::memcpy(image.memory + next.state_begin, state_text.data(),
              state_text.size());
  CopyPieces(pieces, layout, image.memory + next.data_begin);
  next.crc32c = CrcOf(next);
  std::memcpy(static_cast<void*>(header), &next, sizeof(next));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Whole from here on.
  std::memcpy(header->magic, kMagic, sizeof(kMagic));
}

}  // namespace capstan
