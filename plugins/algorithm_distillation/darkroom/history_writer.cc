// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <hdf5/serial/hdf5.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom/hdf5_handle.h"
#include "plugins/algorithm_distillation/darkroom/history_datasets.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/darkroom/history_origin.h"

namespace capstan::darkroom {
namespace {

// The size of HDF5's chunk cache is 1 MiB.
constexpr int64_t kChunkBytes = 1 << 20;
constexpr int kGzipLevel = 4;

// h5py's type for numpy's bool.
hid_t BoolType() {
  const hid_t type = H5Tenum_create(H5T_NATIVE_INT8);
  const int8_t no = 0, yes = 1;
  H5Tenum_insert(type, "FALSE", &no);
  H5Tenum_insert(type, "TRUE", &yes);
  return type;
}

// Writes values [steps, streams] or [steps, streams, numbers] as `Stored`, plus
// `least`.
template <typename Stored>
bool WriteDataset(hid_t group, const Dataset& dataset_of, hid_t type,
                  const History& history) {
  const std::vector<uint8_t>& values = history.*dataset_of.values;
  const int64_t row = values.size() / history.steps;
  const hsize_t sizes[3] = {static_cast<hsize_t>(history.steps),
                            static_cast<hsize_t>(history.streams),
                            static_cast<hsize_t>(history.numbers)};
  hsize_t chunk[3] = {sizes[0], sizes[1], sizes[2]};
  const hsize_t fitting = kChunkBytes / (row * sizeof(Stored));
  if (chunk[0] > fitting) chunk[0] = fitting > 0 ? fitting : 1;
  const int rank = dataset_of.rank;
  const Hdf5Handle space(H5Screate_simple(rank, sizes, nullptr), H5Sclose);
  const Hdf5Handle layout(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  if (H5Pset_chunk(layout, rank, chunk) < 0 || H5Pset_shuffle(layout) < 0 ||
      H5Pset_deflate(layout, kGzipLevel) < 0 ||
      H5Pset_obj_track_times(layout, false) < 0) {
    return false;
  }
  const Hdf5Handle dataset(H5Dcreate2(group, dataset_of.name, type, space,
                                      H5P_DEFAULT, layout, H5P_DEFAULT),
                           H5Dclose);
  const int least =
      dataset_of.values == &History::rewards ? history.least_reward : 0;
  std::vector<Stored> stored(values.begin(), values.end());
  for (Stored& value : stored) value = static_cast<Stored>(value + least);
  return dataset >= 0 && H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                                  stored.data()) >= 0;
}

bool WriteGroup(hid_t group, const History& history) {
  const Hdf5Handle bools(BoolType(), H5Tclose);
  if (group < 0) return false;
  for (const Dataset& dataset : kDatasets) {
    const std::vector<uint8_t>& values = history.*dataset.values;
    if (IsMarkers(dataset) && values.empty()) continue;
    const bool written =
        dataset.is_bool
            ? WriteDataset<int8_t>(group, dataset, bools, history)
            : WriteDataset<int32_t>(group, dataset, H5T_NATIVE_INT32, history);
    if (!written) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HistoryWriter>> HistoryWriter::Create(
    const std::string& path) {
  const std::string partial = absl::StrCat(path, ".partial.", getpid());
  // HDF5 doesn't say why it can't create a file.
  const int fd =
      open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) {
    return WriteError(path, errno);
  }
  close(fd);
  const QuietHdf5 quiet;
  const hid_t file =
      H5Fcreate(partial.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  if (file < 0) {
    unlink(partial.c_str());
    return absl::InternalError(
        absl::StrCat(path, ": HDF5 can't make a file there"));
  }
  return std::unique_ptr<HistoryWriter>(new HistoryWriter(path, partial, file));
}

HistoryWriter::~HistoryWriter() {
  if (file_ < 0) return;
  const QuietHdf5 quiet;
  H5Fclose(file_);
  unlink(partial_.c_str());
}

absl::Status HistoryWriter::Describe(const HistoryOrigin& origin) {
  const QuietHdf5 quiet;
  const std::string text = OriginToJson(origin);
  const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  H5Tset_cset(type, H5T_CSET_UTF8);
  if (H5Tset_size(type, text.size()) >= 0) {
    const Hdf5Handle attribute(
        H5Acreate2(file_, kOriginName, type, space, H5P_DEFAULT, H5P_DEFAULT),
        H5Aclose);
    if (attribute >= 0 && H5Awrite(attribute, type, text.data()) >= 0) {
      return absl::OkStatus();
    }
  }
  return absl::UnavailableError(
      absl::StrCat(path_, ": what it is can't be written; is the disk full?"));
}

absl::Status HistoryWriter::Write(int task, const History& history) {
  const QuietHdf5 quiet;
  const Hdf5Handle group(H5Gcreate2(file_, absl::StrCat(task).c_str(),
                                    H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                         H5Gclose);
  if (WriteGroup(group, history)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      path_, ": the history of task ", task,
      " can't be written; is the disk full, or the task there already?"));
}

absl::Status HistoryWriter::Commit() {
  const QuietHdf5 quiet;
  const bool closed = H5Fclose(std::exchange(file_, -1)) >= 0;
  absl::Status status =
      closed ? SyncPath(partial_)
             : absl::UnavailableError(absl::StrCat(
                   path_, " can't be completed; is the disk full?"));
  if (status.ok() && std::rename(partial_.c_str(), path_.c_str()) != 0) {
    status = WriteError(path_, errno);
  }
  if (!status.ok()) unlink(partial_.c_str());
  return status;
}

}  // namespace capstan::darkroom
