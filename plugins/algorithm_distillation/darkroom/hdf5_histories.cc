// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom/hdf5_histories.h"

#include <fcntl.h>
#include <hdf5/serial/hdf5.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom/history_origin.h"

namespace capstan::darkroom {
namespace {

// An HDF5 identifier with the function that closes it; below 0: none.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;

  operator hid_t() const { return id_; }

 private:
  const hid_t id_;
  const Close close_;
};

// Suppresses HDF5's error messages on this thread during its lifetime.
class QuietHdf5 {
 public:
  QuietHdf5() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietHdf5() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  QuietHdf5(const QuietHdf5&) = delete;
  QuietHdf5& operator=(const QuietHdf5&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

template <typename... Parts>
absl::Status Bad(const Parts&... problem) {
  return absl::InvalidArgumentError(absl::StrCat(problem...));
}

bool Has(hid_t group, const char* name) {
  return H5Lexists(group, name, H5P_DEFAULT) > 0;
}

// Whether the name stands for something in this file, and is no link to a name
// in it or in another.
bool IsOwn(hid_t group, const char* name) {
  H5L_info_t info;
  return H5Lget_info(group, name, &info, H5P_DEFAULT) >= 0 &&
         info.type == H5L_TYPE_HARD;
}

// A dataset may keep its data in files of any name, or be put together from
// other datasets, itself among them. Before anything else is asked of it.
bool KeepsItsData(hid_t dataset) {
  const Hdf5Handle made(H5Dget_create_plist(dataset), H5Pclose);
  return made >= 0 && H5Pget_external_count(made) == 0 &&
         H5Pget_layout(made) != H5D_VIRTUAL;
}

// Of a dataset's values, how many are read at a time.
constexpr int64_t kValuesAtATime = 8 << 20;

std::string Dimensions(const std::vector<hsize_t>& sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

class Source {
 public:
  // `file_bytes`: the file's length.
  Source(const std::string& path, int task, hid_t group, const Dataset& layout,
         int64_t file_bytes)
      : layout_(layout),
        what_(absl::StrCat(path, ": ", task, "/", layout.name)),
        file_bytes_(file_bytes),
        is_own_(IsOwn(group, layout.name)),
        id_(is_own_ ? H5Dopen2(group, layout.name, H5P_DEFAULT) : -1, H5Dclose),
        keeps_its_data_(id_ >= 0 && KeepsItsData(id_)),
        space_(keeps_its_data_ ? H5Dget_space(id_) : -1, H5Sclose) {}

  absl::Status CheckType() const {
    if (!is_own_) {
      return Error("is a link to something else: copy the data into this file");
    }
    if (id_ < 0) return Error("is not a dataset");
    if (!keeps_its_data_) {
      return Error(
          "has its data in other files or datasets: copy it into this file");
    }
    const H5T_class_t kind = Class();
    if (kind == H5T_INTEGER || kind == H5T_FLOAT ||
        (layout_.is_bool && kind == H5T_ENUM)) {
      return absl::OkStatus();
    }
    return Error("must be of ", layout_.is_bool ? "bools" : "numbers",
                 ", and isn't");
  }

  // [T, S] of [T, S] or [T, S, N]; *numbers becomes N.
  absl::StatusOr<HistoryShape> Shape(int64_t* numbers) const {
    std::vector<hsize_t> sizes(std::max(0, H5Sget_simple_extent_ndims(space_)));
    H5Sget_simple_extent_dims(space_, sizes.data(), nullptr);
    if (static_cast<int>(sizes.size()) != layout_.rank ||
        std::count(sizes.begin(), sizes.end(), 0) > 0 ||
        (layout_.rank == 3 && sizes[2] > EnvironmentSpec::kMostNumbers)) {
      return Error("must be [steps, streams",
                   layout_.rank == 3 ? ", numbers of an observation" : "",
                   "], none of them 0, and is ", Dimensions(sizes));
    }
    if (layout_.rank == 3) *numbers = static_cast<int64_t>(sizes[2]);
    const hsize_t stored = std::min<hsize_t>(H5Dget_storage_size(id_),
                                             static_cast<hsize_t>(file_bytes_));
    const hsize_t most = std::max<hsize_t>(
        kAlwaysFine, stored * kMostBytesPerStoredByte / ValueBytes());
    const hsize_t cells = most / Width(layout_, *numbers);
    if (sizes[0] > cells || sizes[1] > cells / sizes[0]) {
      return Error("says that it is ", Dimensions(sizes), ", but has only ",
                   stored, " bytes of data: the file is damaged");
    }
    return HistoryShape{static_cast<int64_t>(sizes[0]),
                        static_cast<int64_t>(sizes[1])};
  }

  // Reads that many steps and streams; each value must be one of ValuesOf.
  absl::Status Read(const HistoryShape& part, const EnvironmentSpec& spec,
                    std::vector<uint8_t>* values) const {
    const int64_t row = part.streams * Width(layout_, spec.numbers);
    values->resize(part.steps * row);
    const int64_t most = std::max<int64_t>(1, kValuesAtATime / row);
    for (int64_t begin = 0; begin < part.steps; begin += most) {
      const Rows rows = {begin, std::min(most, part.steps - begin),
                         part.streams, values->data() + begin * row};
      // Integers that don't fit an int32 are clamped.
      CAPSTAN_RETURN_IF_ERROR(
          Class() == H5T_FLOAT ? ReadAs<double>(H5T_NATIVE_DOUBLE, rows, spec)
                               : ReadAs<int32_t>(H5T_NATIVE_INT32, rows, spec));
    }
    return absl::OkStatus();
  }

  template <typename... Parts>
  absl::Status Error(const Parts&... problem) const {
    return Bad(what_, " ", problem...);
  }

 private:
  H5T_class_t Class() const {
    const Hdf5Handle type(H5Dget_type(id_), H5Tclose);
    return H5Tget_class(type);
  }

  size_t ValueBytes() const {
    const Hdf5Handle type(H5Dget_type(id_), H5Tclose);
    return std::max<size_t>(1, H5Tget_size(type));
  }

  // Steps [begin, begin + count) of the first `streams` streams.
  struct Rows {
    int64_t begin;
    int64_t count;
    int64_t streams;
    uint8_t* values;
  };

  template <typename T>
  absl::Status ReadAs(hid_t type, const Rows& rows,
                      const EnvironmentSpec& spec) const {
    const size_t width = Width(layout_, spec.numbers);
    const hsize_t start[3] = {static_cast<hsize_t>(rows.begin), 0, 0};
    const hsize_t sizes[3] = {static_cast<hsize_t>(rows.count),
                              static_cast<hsize_t>(rows.streams), width};
    if (H5Sselect_hyperslab(space_, H5S_SELECT_SET, start, nullptr, sizes,
                            nullptr) < 0) {
      return Error("can't be read");
    }
    const Hdf5Handle memory(H5Screate_simple(layout_.rank, sizes, nullptr),
                            H5Sclose);
    std::vector<T> wide(rows.count * rows.streams * width);
    if (H5Dread(id_, type, memory, space_, H5P_DEFAULT, wide.data()) < 0) {
      return Error("can't be read: the file is damaged");
    }
    for (size_t i = 0; i < wide.size(); ++i) {
      const Values values = ValuesOf(layout_, spec, i % width);
      const double value = static_cast<double>(wide[i]) - values.least;
      // NaN fails both comparisons.
      const bool within = value >= 0 && value < values.count;
      rows.values[i] = within ? static_cast<uint8_t>(value) : 0;
      if (!within || rows.values[i] != value) {
        return NotOneOf(wide[i], values, rows, i, width);
      }
    }
    return absl::OkStatus();
  }

  absl::Status NotOneOf(double value, const Values& values, const Rows& rows,
                        size_t index, size_t width) const {
    const hsize_t inner[3] = {0, static_cast<hsize_t>(rows.streams), width};
    std::vector<hsize_t> at(layout_.rank);
    for (int d = layout_.rank - 1; d > 0; --d) {
      at[d] = index % inner[d];
      index /= inner[d];
    }
    at[0] = rows.begin + index;
    return Error("has ", absl::StrFormat("%.10g", value), " at ",
                 Dimensions(at), ", but ", layout_.what,
                 layout_.rank == 3 ? " has there one" : " is one",
                 " of the whole numbers ", values.least, " to ",
                 values.least + values.count - 1);
  }

  const Dataset& layout_;
  const std::string what_;
  const int64_t file_bytes_;
  const bool is_own_;
  const Hdf5Handle id_;
  const bool keeps_its_data_;
  const Hdf5Handle space_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Hdf5Histories>> Hdf5Histories::Open(
    const std::string& path, int64_t bytes) {
  const QuietHdf5 quiet;
  if (H5Fis_hdf5(path.c_str()) <= 0) {
    return Bad(path,
               " is not an HDF5 file; learning histories are expected, as "
               "`trainer collect` makes them");
  }
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file < 0) {
    return Bad(path,
               " is an HDF5 file that is damaged, cut short, or still being "
               "written");
  }
  std::unique_ptr<Hdf5Histories> reader(new Hdf5Histories(path, file, bytes));
  CAPSTAN_RETURN_IF_ERROR(reader->ListTasks());
  return reader;
}

Hdf5Histories::~Hdf5Histories() { H5Fclose(file_); }

absl::Status Hdf5Histories::ListTasks() {
  H5G_info_t info;
  if (H5Gget_info(file_, &info) < 0) {
    return Bad(path_, " is damaged: its groups can't be listed");
  }
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    char name[64] = "";
    H5Lget_name_by_idx(file_, ".", H5_INDEX_NAME, H5_ITER_INC, i, name,
                       sizeof(name), H5P_DEFAULT);
    int task = -1;
    if (!absl::SimpleAtoi(name, &task) || absl::StrCat(task) != name ||
        task < 0) {
      return Bad(
          path_, " has something called \"", name,
          "\"; learning histories have a group for each task, \"0\", \"1\", "
          "..");
    }
    if (!IsOwn(file_, name)) {
      return Bad(path_, ": ", task,
                 " is a link to something else: copy the group into this file");
    }
    tasks_.push_back(task);
  }
  if (tasks_.empty()) {
    return Bad(path_,
               " has no group; learning histories have one for "
               "each task, \"0\", \"1\", ..");
  }
  std::sort(tasks_.begin(), tasks_.end());
  return absl::OkStatus();
}

absl::StatusOr<std::string> Hdf5Histories::OriginText() const {
  const QuietHdf5 quiet;
  if (H5Aexists(file_, kOriginName) <= 0) return std::string();
  const auto bad = [this] {
    return Bad(path_, ": its attribute \"", kOriginName,
               "\" isn't a string of up to ", kMostOriginBytes, " bytes");
  };
  const Hdf5Handle attribute(H5Aopen(file_, kOriginName, H5P_DEFAULT),
                             H5Aclose);
  const Hdf5Handle type(attribute >= 0 ? H5Aget_type(attribute) : -1, H5Tclose);
  const Hdf5Handle space(attribute >= 0 ? H5Aget_space(attribute) : -1,
                         H5Sclose);
  if (type < 0 || H5Tget_class(type) != H5T_STRING || space < 0 ||
      H5Sget_simple_extent_npoints(space) != 1) {
    return bad();
  }
  if (H5Tis_variable_str(type) > 0) {  // as h5py writes them
    char* text = nullptr;
    if (H5Aread(attribute, type, &text) < 0 || text == nullptr) return bad();
    std::string copy(text, strnlen(text, kMostOriginBytes + 1));
    H5free_memory(text);
    if (copy.size() > kMostOriginBytes) return bad();
    return copy;
  }
  const size_t size = H5Tget_size(type);
  if (size > kMostOriginBytes) return bad();
  std::string text(size, '\0');
  if (H5Aread(attribute, type, &text[0]) < 0) return bad();
  text.resize(strnlen(text.data(), text.size()));
  return text;
}

absl::StatusOr<HistoryShape> Hdf5Histories::Shape(int task) const {
  const QuietHdf5 quiet;
  if (!std::binary_search(tasks_.begin(), tasks_.end(), task)) {
    return Bad(path_, " has no history of task ", task);
  }
  const Hdf5Handle group(
      H5Gopen2(file_, absl::StrCat(task).c_str(), H5P_DEFAULT), H5Gclose);
  if (group < 0) {
    return Bad(path_, ": ", task, " must be a group, and isn't");
  }
  HistoryShape shape;
  int64_t numbers = 0;
  for (const Dataset& dataset : kDatasets) {
    if (!Has(group, dataset.name)) {
      if (IsMarkers(dataset)) continue;
      return Bad(path_, ": group ", task, " has no dataset \"", dataset.name,
                 "\"");
    }
    const Source source(path_, task, group, dataset, bytes_);
    CAPSTAN_RETURN_IF_ERROR(source.CheckType());
    int64_t own_numbers = numbers;
    CAPSTAN_ASSIGN_OR_RETURN(const HistoryShape own,
                             source.Shape(&own_numbers));
    if (numbers == 0) numbers = own_numbers;
    if (own_numbers != numbers) {
      return source.Error("has observations of ", own_numbers,
                          " numbers, states of ", numbers);
    }
    if (dataset.values == kStates.values) shape = own;
    if (own.steps != shape.steps || own.streams != shape.streams) {
      return source.Error("is of ", own.steps, " steps and ", own.streams,
                          " streams, states ", "of ", shape.steps, " and ",
                          shape.streams);
    }
  }
  return shape;
}

absl::StatusOr<History> Hdf5Histories::Read(int task,
                                            const EnvironmentSpec& spec,
                                            int64_t steps,
                                            int64_t streams) const {
  CAPSTAN_ASSIGN_OR_RETURN(HistoryShape shape, Shape(task));
  if (steps > shape.steps || streams > shape.streams) {
    return Bad(path_, ": group ", task, " has ", shape.steps, " steps of ",
               shape.streams, " streams; ", std::max(steps, int64_t{1}), " of ",
               std::max(streams, int64_t{1}), " are wanted");
  }
  if (steps >= 0) shape.steps = steps;
  if (streams >= 0) shape.streams = streams;
  const QuietHdf5 quiet;
  const Hdf5Handle group(
      H5Gopen2(file_, absl::StrCat(task).c_str(), H5P_DEFAULT), H5Gclose);
  History history;
  history.steps = shape.steps;
  history.streams = shape.streams;
  history.numbers = spec.numbers;
  history.least_reward = spec.least_reward;
  for (const Dataset& dataset : kDatasets) {
    if (IsMarkers(dataset) && !Has(group, dataset.name)) continue;
    const Source source(path_, task, group, dataset, bytes_);
    int64_t numbers = spec.numbers;
    CAPSTAN_RETURN_IF_ERROR(source.Shape(&numbers).status());
    if (numbers != spec.numbers) {
      return source.Error("has observations of ", numbers,
                          " numbers; the environment's have ", spec.numbers);
    }
    CAPSTAN_RETURN_IF_ERROR(
        source.Read(shape, spec, &(history.*dataset.values)));
  }
  return history;
}

// Writing.

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
