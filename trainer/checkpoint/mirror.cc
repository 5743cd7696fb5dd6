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
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/limits.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/gpu_tools.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/save.h"
#include "trainer/checkpoint/state_file.h"

// After LibTorch's headers, which define the same macros.
#include <glog/logging.h>

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

// Room for the train state, which may have many recent losses and bad samples.
// A step whose state doesn't fit isn't mirrored.
constexpr int64_t kStateRoom = 1 << 20;

uint32_t CrcOf(const Header& header) {
  constexpr size_t kSkipped = offsetof(Header, restart);
  return Crc32c({reinterpret_cast<const char*>(&header) + kSkipped,
                 sizeof(header) - kSkipped});
}

// How errors name an image.
constexpr char kImageName[] = "a mirror";

// Returns the header of a complete image; unset if there is none.
absl::optional<Header> ReadHeader(const ReadMirror& read) {
  Header header;
  if (!read(0, sizeof(header), reinterpret_cast<char*>(&header)).ok() ||
      std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 ||
      header.crc32c != CrcOf(header)) {
    return absl::nullopt;
  }
  return header;
}

// Returns nothing if there is no complete image.
absl::optional<TrainState> ReadState(const ReadMirror& read) {
  const absl::optional<Header> header = ReadHeader(read);
  if (!header.has_value()) return absl::nullopt;
  std::string text(static_cast<size_t>(header->state_bytes), '\0');
  if (!read(header->state_begin, header->state_bytes, &text[0]).ok() ||
      Crc32c(text) != header->state_crc32c) {
    return absl::nullopt;
  }
  absl::StatusOr<TrainState> state = TrainStateFromText(text, kImageName);
  if (!state.ok()) return absl::nullopt;
  return *std::move(state);
}

// An image's layout as text: a manifest with the rank's ranges.
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
  return ManifestToJson(manifest);
}

std::string NameOf(const MirroredStep& step) {
  return absl::StrCat("the mirror of step ", step.state.step);
}

// An image's layout: its ranges, and where the data of the first begin.
struct ReadLayout {
  Manifest frame;
  ManifestFile file;
  int64_t data_begin = 0;
};

absl::StatusOr<ReadLayout> LayoutOf(const ReadMirror& image) {
  const absl::Status none = absl::DataLossError("an image of it isn't whole");
  const absl::optional<Header> header = ReadHeader(image);
  if (!header.has_value()) return none;
  std::string text(static_cast<size_t>(header->layout_bytes), '\0');
  CAPSTAN_RETURN_IF_ERROR(image(kPage, header->layout_bytes, &text[0]));
  ReadLayout read;
  CAPSTAN_ASSIGN_OR_RETURN(read.frame, ManifestFromJson(text, kImageName));
  absl::optional<TrainState> state = ReadState(image);
  if (!state.has_value()) return none;
  read.frame.train_state = *std::move(state);
  read.file = std::move(read.frame.files[0]);
  read.frame.files.clear();
  read.data_begin = header->data_begin;
  return read;
}

using Places = std::map<std::string, StateFile::Place>;

absl::StatusOr<Places> PlacesIn(const ManifestFile& file, int64_t data_begin) {
  Places places;
  int64_t offset = data_begin;
  for (const ManifestRange& range : file.ranges) {
    StateFile::Place place;
    CAPSTAN_ASSIGN_OR_RETURN(place.dtype, SafetensorsDtype(range.dtype));
    place.numel = range.length;
    place.offset = offset;
    place.bytes =
        place.numel * static_cast<int64_t>(c10::elementSize(place.dtype));
    offset += PieceLayout::Taken(place.bytes);
    places[range.Key()] = place;
  }
  return places;
}

// This rank's part of what the ranks tell each other: a line for each of its
// share of the images, "DATA_BEGIN JSON".
absl::StatusOr<std::string> ShareOfLayouts(const MirroredStep& step,
                                           const ProcessGroup& group) {
  std::string lines;
  for (size_t i = group.rank(); i < step.images.size(); i += group.size()) {
    CAPSTAN_ASSIGN_OR_RETURN(const ReadLayout read, LayoutOf(step.images[i]));
    absl::StrAppend(&lines, read.data_begin, " ", ManifestFileToJson(read.file),
                    "\n");
  }
  return lines;
}

struct OpenImage {
  ReadMirror read;
  Places places;
};

// Returns the images of `step` as one checkpoint, for rank `rank`. `shares` are
// the ranks'.
absl::StatusOr<StoredState> StoredIn(const MirroredStep& step, int rank,
                                     const std::vector<std::string>& shares) {
  StoredState stored;
  CAPSTAN_ASSIGN_OR_RETURN(ReadLayout nearest,
                           LayoutOf(step.images[step.nearest]));
  stored.manifest = std::move(nearest.frame);
  std::vector<std::vector<absl::string_view>> lines;
  for (const std::string& share : shares) {
    lines.push_back(absl::StrSplit(share, '\n'));
  }
  auto opened = std::make_shared<std::map<std::string, OpenImage>>();
  const size_t images = step.images.size();
  for (size_t k = 0; k < images; ++k) {
    // In this order they are read: not all ranks begin with the same.
    const size_t i = (static_cast<size_t>(rank) + k) % images;
    const std::pair<absl::string_view, absl::string_view> line = absl::StrSplit(
        lines[i % shares.size()][i / shares.size()], absl::MaxSplits(' ', 1));
    int64_t data_begin = 0;
    if (!absl::SimpleAtoi(line.first, &data_begin)) {
      return absl::InternalError("a rank told no layout of an image");
    }
    CAPSTAN_ASSIGN_OR_RETURN(ManifestFile file,
                             ManifestFileFromJson(line.second, kImageName));
    CAPSTAN_ASSIGN_OR_RETURN(Places places, PlacesIn(file, data_begin));
    (*opened)[file.name] = {step.images[i], std::move(places)};
    stored.manifest.files.push_back(std::move(file));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckManifest(stored.manifest));
  stored.name = NameOf(step);
  stored.open = [opened, name = stored.name](const ManifestFile& file)
      -> absl::StatusOr<std::unique_ptr<StateFile>> {
    const OpenImage& image = opened->at(file.name);
    return StateFile::WithoutHeader(absl::StrCat(name, ", ", file.name),
                                    image.read, image.places);
  };
  return stored;
}

int64_t RoundUp(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Where data begin, behind a layout of that text and the train state.
int64_t DataBegin(const std::string& layout) {
  return kPage + RoundUp(static_cast<int64_t>(layout.size())) + kStateRoom;
}

int64_t BytesOfImage(const PieceLayout& layout, const std::string& text) {
  return DataBegin(text) + layout.bytes;
}

absl::Status CheckFits(const std::string& state) {
  if (static_cast<int64_t>(state.size()) <= kStateRoom) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      "its lists (of bad samples, of recent losses) have grown too long");
}

// All that changes from one layout to another.
std::string LengthsText(const std::vector<StatePiece>& pieces) {
  std::string text;
  for (const StatePiece& piece : pieces) {
    if (!IsPluginKind(piece.range.kind)) continue;
    absl::StrAppend(&text, piece.range.kind, " ", piece.range.length, "\n");
  }
  return text;
}

// Room for plugins' states to grow in, if there are any.
int64_t RoomToGrow(const std::vector<StatePiece>& pieces) {
  constexpr int64_t kLeast = 1 << 20;
  int64_t bytes = 0;
  for (const StatePiece& piece : pieces) {
    if (IsPluginKind(piece.range.kind)) bytes += piece.range.length;
  }
  return bytes == 0 ? 0 : std::max(kLeast, bytes);
}

}  // namespace

absl::optional<MirrorImage> MirrorImageIn(int fd) {
  const ReadMirror read = ReadMirrorIn(fd);
  const absl::optional<Header> header = ReadHeader(read);
  if (!header.has_value() || !ReadState(read).has_value()) {
    return absl::nullopt;
  }
  return MirrorImage{
      {header->restart, header->sequence}, header->rank, header->world_size};
}

ReadMirror ReadMirrorIn(int fd) {
  return [fd](int64_t offset, int64_t bytes, char* out) -> absl::Status {
    while (bytes > 0) {
      const ssize_t n = pread(fd, out, static_cast<size_t>(bytes), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return absl::DataLossError("an image of it is too short");
      out += n;
      offset += n;
      bytes -= n;
    }
    return absl::OkStatus();
  };
}

absl::optional<MirroredStep> NewestMirroredStep(
    const std::vector<FoundMirror>& found) {
  // The key has the world size, so that images of several generations don't
  // mix.
  std::map<std::pair<MirrorKey, int>, std::map<int, const FoundMirror*>> steps;
  for (const FoundMirror& one : found) {
    steps[{one.image.key, one.image.world_size}].emplace(one.image.rank, &one);
  }
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    const auto& [made, ranks] = *it;
    const auto& [key, world_size] = made;
    if (static_cast<int>(ranks.size()) != world_size) continue;
    MirroredStep step;
    step.key = key;
    bool here = false;
    for (const auto& [rank, image] : ranks) {
      if (image->here && !std::exchange(here, true)) {
        step.nearest = step.images.size();
      }
      step.images.push_back(image->read);
    }
    absl::optional<TrainState> state = ReadState(step.images[step.nearest]);
    if (!state.has_value()) return absl::nullopt;
    step.state = *std::move(state);
    return step;
  }
  return absl::nullopt;
}

std::vector<FoundMirror> MirrorsIn(const std::vector<int>& fds) {
  std::vector<FoundMirror> found;
  for (const int fd : fds) {
    const absl::optional<MirrorImage> image = MirrorImageIn(fd);
    if (image.has_value()) found.push_back({*image, ReadMirrorIn(fd)});
  }
  return found;
}

int RestartAfter(const std::vector<FoundMirror>& found, int restart) {
  for (const FoundMirror& one : found) {
    restart = std::max(restart, one.image.key.restart + 1);
  }
  return restart;
}

absl::StatusOr<TrainState> LoadMirroredStep(const MirroredStep& step,
                                            const CheckpointParts& parts,
                                            bool* touched) {
  if (touched != nullptr) *touched = false;
  TrainState state;
  ProcessGroup& group = *parts.group;
  const auto agree = [&](const std::function<absl::Status()>& work) {
    return Agree(group, CatchAll(work),
                 [&](int) { return absl::StrCat("read ", NameOf(step)); });
  };
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&]() -> absl::Status {
    std::string share;
    CAPSTAN_RETURN_IF_ERROR(agree([&] {
      auto mine = ShareOfLayouts(step, group);
      if (mine.ok()) share = *std::move(mine);
      return Annotate(mine.status(), NameOf(step));
    }));
    StoredState stored;
    CAPSTAN_RETURN_IF_ERROR(agree([&] {
      auto all = StoredIn(step, group.rank(), FromAllRanks(group, share));
      if (all.ok()) stored = *std::move(all);
      return Annotate(all.status(), NameOf(step));
    }));
    if (touched != nullptr) *touched = true;
    return agree([&] { return LoadState(stored, parts, &state); });
  }));
  return state;
}

RunIdentity IdentityOf(const MirroredStep& step) {
  absl::StatusOr<ReadLayout> layout = LayoutOf(step.images[0]);
  return layout.ok() ? std::move(layout->frame.identity) : RunIdentity();
}

absl::StatusOr<LoadedNewest> LoadMirrorOrCheckpoint(
    const absl::optional<MirroredStep>& step, const std::string& output_dir,
    const CheckpointParts& parts) {
  LoadedNewest loaded;
  bool touched = false;
  if (step.has_value()) {
    absl::StatusOr<TrainState> state = LoadMirroredStep(*step, parts, &touched);
    if (state.ok()) {
      loaded.from_mirror = true;
      loaded.resumed.state = *std::move(state);
      return loaded;
    }
    loaded.mirror = state.status();
  }
  CAPSTAN_ASSIGN_OR_RETURN(loaded.resumed,
                           LoadNewestCheckpoint(output_dir, parts));
  if (touched && loaded.resumed.folder.empty()) {
    return Annotate(loaded.mirror,
                    "can't go on from the mirror, of which some is read "
                    "already, and there is no checkpoint: start the run again");
  }
  return loaded;
}

absl::Status AllocateMirror(int fd, int64_t bytes) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) {
    return absl::ErrnoToStatus(errno, "the mirror's file");
  }
  // Never shorten it: other ranks may be reading it. Without memory for a page,
  // a write to the mapping would kill the process.
  bytes = std::max<int64_t>(bytes, info.st_size);
  const int error = posix_fallocate(fd, 0, bytes);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for a mirror of ", bytes,
                   " bytes: ", std::strerror(error), LimitText(error)));
}

absl::Status GrowMirror(int fd, int64_t bytes) {
  if (MirrorBytesMissing(fd, bytes) > AvailableHostMemory() / 4) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a mirror of ", bytes, " bytes"));
  }
  return AllocateMirror(fd, bytes);
}

void FreeMirror(int fd, const absl::optional<MirrorKey>& source) {
  const absl::optional<MirrorImage> image = MirrorImageIn(fd);
  if (source.has_value() && image.has_value() && image->key == *source) return;
  // If this fails, the file keeps its memory, which is harmless.
  if (ftruncate(fd, 0) != 0) return;
}

int64_t MirrorBytesMissing(int fd, int64_t bytes) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return 0;
  return std::max<int64_t>(0, bytes - info.st_blocks * int64_t{512});
}

Mirror::Mirror(std::vector<int> fds, int restart,
               const absl::optional<MirroredStep>& source, bool peers)
    : images_(fds.size()), restart_(restart), peers_(peers) {
  for (size_t i = 0; i < fds.size(); ++i) {
    images_[i].fd = fds[i];
    if (!source.has_value()) continue;
    const absl::optional<MirrorImage> image = MirrorImageIn(fds[i]);
    if (image.has_value() && image->key == source->key) {
      kept_ = static_cast<int>(i);
    }
  }
}

Mirror::~Mirror() {
  copies_.Settle();
  for (Image& image : images_) {
    image.pinned.reset();
    if (image.memory != nullptr) munmap(image.memory, image.bytes);
  }
}

int64_t Mirror::ImageBytes(const CheckpointParts& parts) const {
  const std::vector<StatePiece> pieces = OwnedPieces(parts);
  const PieceLayout layout(pieces);
  return BytesOfImage(layout, LayoutText(pieces, layout, parts)) +
         RoomToGrow(pieces);
}

int64_t Mirror::BytesToAllocate(const CheckpointParts& parts) const {
  const int64_t bytes = ImageBytes(parts);
  int64_t missing = 0;
  for (const Image& image : images_) {
    missing += MirrorBytesMissing(image.fd, bytes);
  }
  return missing;
}

absl::Status Mirror::Map(int64_t bytes, Image* image) {
  CAPSTAN_RETURN_IF_ERROR(AllocateMirror(image->fd, bytes));
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, image->fd, 0);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "the mirror can't be mapped");
  }
  image->memory = static_cast<char*>(memory);
  image->bytes = bytes;
  Pin(image);
  return absl::OkStatus();
}

void Mirror::Pin(Image* image) {
  if (!pins_) return;
  const absl::Status pinned = CatchAll([image] {
    image->pinned = PinMemory(image->memory, image->bytes);
    return absl::OkStatus();
  });
  // It can do without, if slower.
  LOG_IF(WARNING, !pinned.ok())
      << "the mirror's memory can't be pinned: " << pinned.message();
}

absl::Status Mirror::Allocate(const CheckpointParts& parts) {
  const int64_t bytes = ImageBytes(parts);
  pins_ = DeviceOf(OwnedPieces(parts)).is_cuda();
  for (Image& image : images_) {
    CAPSTAN_RETURN_IF_ERROR(Map(bytes, &image));
  }
  return absl::OkStatus();
}

absl::Status Mirror::Grow(int64_t bytes, Image* image) {
  CAPSTAN_RETURN_IF_ERROR(GrowMirror(image->fd, bytes));
  image->pinned.reset();
  void* const memory =
      mremap(image->memory, image->bytes, bytes, MREMAP_MAYMOVE);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "the mirror can't be mapped");
  }
  image->memory = static_cast<char*>(memory);
  image->bytes = bytes;
  Pin(image);
  return absl::OkStatus();
}

int Mirror::Next() const {
  int next = -1;
  for (int i = 0; i < static_cast<int>(images_.size()); ++i) {
    if (i == kept_ || i == sent_) continue;
    if (next < 0 || images_[i].sequence < images_[next].sequence) next = i;
  }
  return next;
}

void Mirror::PeersHave() {
  if (sent_ < 0) return;
  kept_ = std::exchange(sent_, -1);
}

absl::StatusOr<Mirror::Copied> Mirror::Copy(const TrainState& state,
                                            const CheckpointParts& parts) {
  // Check before anything is changed, or steps that don't fit would replace
  // those that did.
  std::string text = TrainStateText(state);
  CAPSTAN_RETURN_IF_ERROR(CheckFits(text));
  CAPSTAN_RETURN_IF_ERROR(Begin(state.step, parts));
  SetState(std::move(text));
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<Copied> copied,
                           Complete(/*wait=*/true));
  // A collective comes before the next copy.
  may_begin_ = true;
  return *copied;
}

absl::Status Mirror::Begin(int64_t step, const CheckpointParts& parts) {
  // Also of a copy that fails below, on this rank alone: the ranks' images of
  // one step have one number.
  const int64_t sequence = ++sequence_;
  begun_.step = step;
  may_begin_ = false;
  const std::vector<StatePiece> pieces = OwnedPieces(parts);
  const PieceLayout layout(pieces);
  const int index = Next();
  Image& image = images_[index];
  // But for the states of plugins, the layout is the same at each step.
  const std::string lengths = LengthsText(pieces);
  const bool other = image.layout.empty() || image.lengths != lengths;
  std::string fresh;
  if (other) fresh = LayoutText(pieces, layout, parts);
  const std::string& text = other ? fresh : image.layout;
  const int64_t bytes = BytesOfImage(layout, text);
  if (bytes > image.bytes) {
    CAPSTAN_RETURN_IF_ERROR(Grow(bytes + RoomToGrow(pieces), &image));
  }
  last_ = index;
  image.sequence = sequence;
  // When a copy begins, the one before is complete on all ranks.
  if (!peers_) kept_ = -1;
  std::memset(image.memory, 0, sizeof(Header::magic));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (other) {
    std::memcpy(image.memory + kPage, fresh.data(), fresh.size());
    image.layout = std::move(fresh);
    image.lengths = lengths;
  }
  begun_.rank = parts.group->rank();
  begun_.world_size = parts.group->size();
  begun_.data_bytes = layout.bytes;
  begun_.text.clear();
  copies_.Start(pieces, layout, image.memory + DataBegin(image.layout));
  begun_.index = index;
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<Mirror::Copied>> Mirror::Complete(bool wait) {
  if (!pending() || awaits_state()) return absl::nullopt;
  if (wait) copies_.Wait();
  if (!copies_.done()) return absl::nullopt;
  const absl::Status fits = CheckFits(begun_.text);
  if (!fits.ok()) {
    // NonePending tells when the next may begin, on all ranks alike.
    GiveUp();
    return fits;
  }
  const Image& image = images_[std::exchange(begun_.index, -1)];
  // The checksum includes the padding between fields.
  Header next;
  std::memset(static_cast<void*>(&next), 0, sizeof(next));
  next.restart = restart_;
  next.rank = begun_.rank;
  next.world_size = begun_.world_size;
  next.sequence = image.sequence;
  next.layout_bytes = static_cast<int64_t>(image.layout.size());
  next.data_begin = DataBegin(image.layout);
  next.state_begin = next.data_begin - kStateRoom;
  next.state_bytes = static_cast<int64_t>(begun_.text.size());
  next.state_crc32c = Crc32c(begun_.text);
  std::memcpy(image.memory + next.state_begin, begun_.text.data(),
              begun_.text.size());
  next.crc32c = CrcOf(next);
  auto* const header = reinterpret_cast<Header*>(image.memory);
  std::memcpy(static_cast<void*>(header), &next, sizeof(next));
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // This makes the image complete.
  std::memcpy(header->magic, kMagic, sizeof(kMagic));
  return absl::optional<Copied>(Copied{{restart_, image.sequence},
                                       image.memory,
                                       next.data_begin + begun_.data_bytes});
}

void Mirror::Drop() {
  may_begin_ = true;
  if (pending()) GiveUp();
}

void Mirror::GiveUp() {
  const int index = std::exchange(begun_.index, -1);
  // The next copy goes there rather than to the image before.
  images_[index].sequence = 0;
  // Peers will never have it.
  if (sent_ == index) sent_ = -1;
}

}  // namespace capstan
