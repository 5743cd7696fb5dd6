// SPDX-License-Identifier: Apache-2.0
//
// HistoryReader's child reads the file with libhdf5, which trusts what files
// say: one that is made to do so has it read beyond its memory, crash or loop.
// Here its answers are taken as bytes from outside.
#include "plugins/algorithm_distillation/darkroom/history_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/confined_child.h"
#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom/hdf5_histories.h"
#include "plugins/algorithm_distillation/darkroom/history_origin.h"

namespace capstan::darkroom {
namespace {

template <typename... Parts>
absl::Status Bad(const Parts&... problem) {
  return absl::InvalidArgumentError(absl::StrCat(problem...));
}

// Both are the same program: the structs go as they are.
struct Question {
  enum Kind : int32_t { kTasks, kOrigin, kShape, kRead };
  Kind kind = kTasks;
  int32_t task = 0;
  EnvironmentSpec spec;
  int64_t steps = -1;
  int64_t streams = -1;
};

// Before a history's datasets, which follow in the order of kDatasets.
struct HistoryHeader {
  HistoryShape shape;
  int64_t has_markers = 0;
};

// A variant has hundreds at most.
constexpr int64_t kMostTasks = 1 << 20;

template <typename T>
std::string BytesOf(const T* values, size_t size) {
  return {reinterpret_cast<const char*>(values), size * sizeof(T)};
}

// ---- The child.

absl::StatusOr<std::string> AnswerTo(const Hdf5Histories& file,
                                     const Question& question) {
  switch (question.kind) {
    case Question::kTasks:
      return BytesOf(file.tasks().data(), file.tasks().size());
    case Question::kOrigin:
      return file.OriginText();
    case Question::kShape: {
      CAPSTAN_ASSIGN_OR_RETURN(const HistoryShape shape,
                               file.Shape(question.task));
      return BytesOf(&shape, 1);
    }
    default:
      break;
  }
  CAPSTAN_ASSIGN_OR_RETURN(const History history,
                           file.Read(question.task, question.spec,
                                     question.steps, question.streams));
  const HistoryHeader header = {{history.steps, history.streams},
                                !history.compress_markers.empty()};
  std::string bytes = BytesOf(&header, 1);
  for (const Dataset& dataset : kDatasets) {
    const std::vector<uint8_t>& values = history.*dataset.values;
    bytes.append(values.begin(), values.end());
  }
  return bytes;
}

// Until the parent has no more questions.
void Serve(const std::string& path, int64_t bytes,
           const ConfinedChild::Parent& parent) {
  std::unique_ptr<Hdf5Histories> file;
  const auto answer =
      [&](const Question& question) -> absl::StatusOr<std::string> {
    try {
      if (file == nullptr) {
        CAPSTAN_ASSIGN_OR_RETURN(file, Hdf5Histories::Open(path, bytes));
      }
      return AnswerTo(*file, question);
    } catch (const std::exception& error) {  // no memory
      return Bad(path, " can't be read: ", error.what());
    }
  };
  Question question;
  while (parent.Receive(&question, sizeof(question))) {
    parent.Send(answer(question));
  }
}

// ---- The parent.

// Of the right type, and with no value that isn't one.
absl::Status CheckValues(const std::string& path, const Dataset& dataset,
                         const EnvironmentSpec& spec,
                         const std::vector<uint8_t>& values) {
  const size_t width = Width(dataset, spec.numbers);
  bool within = true;
  for (size_t column = 0; column < width; ++column) {
    const int count = ValuesOf(dataset, spec, column).count;
    for (size_t i = column; i < values.size(); i += width) {
      within &= values[i] < count;
    }
  }
  if (within) return absl::OkStatus();
  return Bad(path, ": ", dataset.name, " can't be read: the file is damaged");
}

}  // namespace

absl::StatusOr<std::unique_ptr<HistoryReader>> HistoryReader::Open(
    const std::string& path) {
  struct stat info;
  if (access(path.c_str(), R_OK) != 0 || stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, " can't be read"));
  }
  if (!S_ISREG(info.st_mode)) return Bad(path, " is not a file");
  ChildLimits limits;
  limits.cpu_seconds += info.st_size >> 20;
  CAPSTAN_ASSIGN_OR_RETURN(
      auto child,
      ConfinedChild::Start(limits, [&](const ConfinedChild::Parent& parent) {
        Serve(path, info.st_size, parent);
      }));
  std::unique_ptr<HistoryReader> reader(
      new HistoryReader(path, info.st_size, std::move(child)));
  CAPSTAN_RETURN_IF_ERROR(reader->AskForTasks());
  Question question;
  question.kind = Question::kOrigin;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string origin,
      reader->Ask(BytesOf(&question, 1), kMostOriginBytes));
  if (!origin.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(reader->origin_, OriginFromJson(path, origin));
  }
  return reader;
}

absl::StatusOr<std::string> HistoryReader::Ask(absl::string_view question,
                                               uint64_t most) const {
  absl::Status status = child_->Send(question);
  if (status.ok()) {
    absl::StatusOr<std::string> answer = child_->Receive(most);
    if (!child_->ended()) return answer;
    status = answer.status();
  }
  return Bad(path_, " can't be read: the process that reads it with libhdf5 ",
             status.message(), "; the file is damaged");
}

absl::Status HistoryReader::Damaged() const {
  return Bad(path_, " can't be read: the file is damaged");
}

absl::Status HistoryReader::AskForTasks() {
  const Question question;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string bytes,
      Ask(BytesOf(&question, 1), kMostTasks * sizeof(int)));
  if (bytes.empty() || bytes.size() % sizeof(int) != 0) return Damaged();
  tasks_.resize(bytes.size() / sizeof(int));
  std::memcpy(tasks_.data(), bytes.data(), bytes.size());
  if (!std::is_sorted(tasks_.begin(), tasks_.end()) || tasks_[0] < 0) {
    return Damaged();
  }
  return absl::OkStatus();
}

absl::Status HistoryReader::CheckTasks(const Environment& environment) const {
  const int task = tasks_.back();
  if (task < environment.tasks()) return absl::OkStatus();
  return Bad(path_, " has a group ", task,
             ", but the environment has only the tasks 0 to ",
             environment.tasks() - 1);
}

absl::StatusOr<HistoryShape> HistoryReader::Shape(int task) const {
  Question question;
  question.kind = Question::kShape;
  question.task = task;
  HistoryShape shape;
  CAPSTAN_ASSIGN_OR_RETURN(const std::string bytes,
                           Ask(BytesOf(&question, 1), sizeof(shape)));
  if (bytes.size() != sizeof(shape)) return Damaged();
  std::memcpy(&shape, bytes.data(), sizeof(shape));
  CAPSTAN_RETURN_IF_ERROR(CheckShape(shape));
  return shape;
}

// As much as such a file can hold.
absl::Status HistoryReader::CheckShape(const HistoryShape& shape) const {
  const auto most = static_cast<int64_t>(MostValues());
  if (shape.steps < 1 || shape.streams < 1 || shape.steps > most ||
      shape.streams > most / shape.steps) {
    return Damaged();
  }
  return absl::OkStatus();
}

uint64_t HistoryReader::MostValues() const {
  return std::max(kAlwaysFine, kMostBytesPerStoredByte * uint64_t(bytes_));
}

absl::StatusOr<History> HistoryReader::Read(int task,
                                            const EnvironmentSpec& spec,
                                            int64_t steps,
                                            int64_t streams) const {
  Question question;
  question.kind = Question::kRead;
  question.task = task;
  question.spec = spec;
  question.steps = steps;
  question.streams = streams;
  int64_t widths = 0;
  for (const Dataset& dataset : kDatasets) {
    widths += Width(dataset, spec.numbers);
  }
  HistoryHeader header;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string bytes,
      Ask(BytesOf(&question, 1), sizeof(header) + widths * MostValues()));
  if (bytes.size() < sizeof(header)) return Damaged();
  std::memcpy(&header, bytes.data(), sizeof(header));
  CAPSTAN_RETURN_IF_ERROR(CheckShape(header.shape));
  History history;
  history.steps = header.shape.steps;
  history.streams = header.shape.streams;
  history.numbers = spec.numbers;
  history.least_reward = spec.least_reward;
  if ((steps >= 0 && history.steps != steps) ||
      (streams >= 0 && history.streams != streams)) {
    return Damaged();
  }
  absl::string_view rest(bytes);
  rest.remove_prefix(sizeof(header));
  for (const Dataset& dataset : kDatasets) {
    if (IsMarkers(dataset) && header.has_markers == 0) continue;
    const auto size = static_cast<size_t>(history.steps * history.streams *
                                          Width(dataset, spec.numbers));
    if (rest.size() < size) return Damaged();
    std::vector<uint8_t>& values = history.*dataset.values;
    values.assign(rest.begin(), rest.begin() + size);
    rest.remove_prefix(size);
    CAPSTAN_RETURN_IF_ERROR(CheckValues(path_, dataset, spec, values));
  }
  return history;
}

}  // namespace capstan::darkroom
