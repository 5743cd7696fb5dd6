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
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom/hdf5_histories.h"
#include "plugins/algorithm_distillation/darkroom/history_datasets.h"
#include "plugins/algorithm_distillation/darkroom/history_origin.h"
#include "plugins/algorithm_distillation/darkroom/reader_child.h"

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

// Behind it come the error's message, the tasks, the origin's text, or a
// history's datasets in the order of kDatasets.
struct Answer {
  int32_t code = 0;  // absl::StatusCode
  int32_t has_markers = 0;
  int64_t size = 0;  // bytes of the message or text, or the number of tasks
  HistoryShape shape;
};

constexpr int64_t kMostMessage = 1 << 16;
// A variant has hundreds at most.
constexpr int64_t kMostTasks = 1 << 20;

// ---- The child.

bool Say(int fd, const absl::Status& status) {
  const std::string text(status.message().substr(0, kMostMessage));
  Answer answer;
  answer.code = static_cast<int32_t>(status.code());
  answer.size = static_cast<int64_t>(text.size());
  return SendAll(fd, &answer, sizeof(answer)) &&
         SendAll(fd, text.data(), text.size());
}

bool SayHistory(int fd, const History& history) {
  Answer answer;
  answer.has_markers = history.compress_markers.empty() ? 0 : 1;
  answer.shape = {history.steps, history.streams};
  if (!SendAll(fd, &answer, sizeof(answer))) return false;
  for (const Dataset& dataset : kDatasets) {
    const std::vector<uint8_t>& values = history.*dataset.values;
    if (!SendAll(fd, values.data(), values.size())) return false;
  }
  return true;
}

bool AnswerOne(int fd, const Hdf5Histories& file, const Question& question) {
  if (question.kind == Question::kTasks) {
    Answer answer;
    answer.size = static_cast<int64_t>(file.tasks().size());
    return SendAll(fd, &answer, sizeof(answer)) &&
           SendAll(fd, file.tasks().data(), file.tasks().size() * sizeof(int));
  }
  if (question.kind == Question::kShape) {
    const auto shape = file.Shape(question.task);
    if (!shape.ok()) return Say(fd, shape.status());
    Answer answer;
    answer.shape = *shape;
    return SendAll(fd, &answer, sizeof(answer));
  }
  if (question.kind == Question::kOrigin) {
    const auto text = file.OriginText();
    if (!text.ok()) return Say(fd, text.status());
    Answer answer;
    answer.size = static_cast<int64_t>(text->size());
    return SendAll(fd, &answer, sizeof(answer)) &&
           SendAll(fd, text->data(), text->size());
  }
  const auto history =
      file.Read(question.task, question.spec, question.steps, question.streams);
  return history.ok() ? SayHistory(fd, *history) : Say(fd, history.status());
}

// Until the parent has no more questions.
void Serve(const std::string& path, int fd) {
  std::unique_ptr<Hdf5Histories> file;
  Question question;
  while (ReceiveAll(fd, &question, sizeof(question))) {
    absl::Status status;
    try {
      if (file == nullptr) {
        auto opened = Hdf5Histories::Open(path);
        status = opened.status();
        if (opened.ok()) file = *std::move(opened);
      }
      // Who doesn't hear it asks no more.
      if (file != nullptr) AnswerOne(fd, *file, question);
    } catch (const std::exception& error) {
      // No memory: an answer is said when there is all of it.
      status = Bad(path, " can't be read: ", error.what());
    }
    if (!status.ok()) Say(fd, status);
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

HistoryReader::HistoryReader(std::string path, int64_t bytes,
                             std::unique_ptr<ReaderChild> child)
    : path_(std::move(path)), bytes_(bytes), child_(std::move(child)) {}

HistoryReader::~HistoryReader() = default;

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
      ReaderChild::Start(limits, [&path](int fd) { Serve(path, fd); }));
  std::unique_ptr<HistoryReader> reader(
      new HistoryReader(path, info.st_size, std::move(child)));
  CAPSTAN_RETURN_IF_ERROR(reader->AskForTasks());
  CAPSTAN_RETURN_IF_ERROR(reader->AskForOrigin());
  return reader;
}

// Asks, and takes the answer's beginning, or the error that it is.
template <typename Question, typename Answer>
absl::Status HistoryReader::Ask(const Question& question,
                                Answer* answer) const {
  absl::Status status = child_->Send(&question, sizeof(question));
  if (status.ok()) status = child_->Receive(answer, sizeof(*answer));
  if (!status.ok()) return Died(status);
  if (answer->code == 0) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::string message, Text(answer->size));
  return {static_cast<absl::StatusCode>(answer->code), message};
}

absl::StatusOr<std::string> HistoryReader::Text(int64_t size) const {
  if (size < 0 || size > kMostMessage) {
    return Bad(path_, " can't be read: the file is damaged");
  }
  std::string text(static_cast<size_t>(size), '\0');
  const absl::Status status = child_->Receive(&text[0], text.size());
  if (!status.ok()) return Died(status);
  return text;
}

absl::Status HistoryReader::AskForOrigin() {
  Question question;
  question.kind = Question::kOrigin;
  Answer answer;
  CAPSTAN_RETURN_IF_ERROR(Ask(question, &answer));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, Text(answer.size));
  if (text.empty()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(origin_, OriginFromJson(path_, text));
  return absl::OkStatus();
}

absl::Status HistoryReader::Died(const absl::Status& death) const {
  return Bad(path_, " can't be read: the process that reads it with libhdf5 ",
             death.message(), "; the file is damaged");
}

absl::Status HistoryReader::AskForTasks() {
  Answer answer;
  CAPSTAN_RETURN_IF_ERROR(Ask(Question(), &answer));
  if (answer.size < 1 || answer.size > kMostTasks) {
    return Bad(path_, " can't be read: the file is damaged");
  }
  tasks_.resize(static_cast<size_t>(answer.size));
  const absl::Status status =
      child_->Receive(tasks_.data(), tasks_.size() * sizeof(int));
  if (!status.ok()) return Died(status);
  if (!std::is_sorted(tasks_.begin(), tasks_.end()) || tasks_[0] < 0) {
    return Bad(path_, " can't be read: the file is damaged");
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
  Answer answer;
  CAPSTAN_RETURN_IF_ERROR(Ask(question, &answer));
  CAPSTAN_RETURN_IF_ERROR(CheckShape(answer.shape));
  return answer.shape;
}

// As much as such a file can hold.
absl::Status HistoryReader::CheckShape(const HistoryShape& shape) const {
  const auto most = static_cast<int64_t>(
      std::max(kAlwaysFine, kMostBytesPerStoredByte * uint64_t(bytes_)));
  if (shape.steps < 1 || shape.streams < 1 || shape.steps > most ||
      shape.streams > most / shape.steps) {
    return Bad(path_, " can't be read: the file is damaged");
  }
  return absl::OkStatus();
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
  Answer answer;
  CAPSTAN_RETURN_IF_ERROR(Ask(question, &answer));
  CAPSTAN_RETURN_IF_ERROR(CheckShape(answer.shape));
  if ((steps >= 0 && answer.shape.steps != steps) ||
      (streams >= 0 && answer.shape.streams != streams)) {
    return Bad(path_, " can't be read: the file is damaged");
  }
  History history;
  history.steps = answer.shape.steps;
  history.streams = answer.shape.streams;
  history.numbers = spec.numbers;
  history.least_reward = spec.least_reward;
  for (const Dataset& dataset : kDatasets) {
    if (IsMarkers(dataset) && answer.has_markers == 0) continue;
    std::vector<uint8_t>& values = history.*dataset.values;
    values.resize(static_cast<size_t>(history.steps * history.streams *
                                      Width(dataset, spec.numbers)));
    const absl::Status status = child_->Receive(values.data(), values.size());
    if (!status.ok()) return Died(status);
    CAPSTAN_RETURN_IF_ERROR(CheckValues(path_, dataset, spec, values));
  }
  return history;
}

}  // namespace capstan::darkroom
