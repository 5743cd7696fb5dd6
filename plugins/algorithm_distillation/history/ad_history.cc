// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/history/ad_history.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/digest.h"
#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/history/file_environment.h"

namespace capstan::ad_history {

// Histories in contiguous memory: 44 MB for 73 tasks of 100 streams of 1000
// steps. Ranks forked later share it.
struct HistoryTable {
  // Those with histories, in the order of the options.
  std::vector<int> tasks;
  std::vector<int> tasks_of_file;  // ascending
  int64_t histories = 0;           // as many of each task
  int64_t steps = 0;
  HistoryColumns columns;
  std::vector<uint8_t> bytes;  // [histories, steps, columns]

  int64_t offset(int64_t history) const {
    return history * steps * columns.count();
  }
};

namespace {

constexpr int64_t kDefaultTransit = 80;
constexpr int64_t kDefaultRegion = 80;
constexpr int64_t kDefaultSteps = 1000;
constexpr int64_t kNone = 0;  // token types
constexpr int64_t kEnd = 2;

struct TableOptions {
  std::string path;
  std::vector<int> tasks;  // those of them in the file
  int64_t streams = 0;     // 0: all
  int64_t steps = 0;       // 0: kDefaultSteps, or all if there are fewer
};

// Copies stream `stream` of time-major `from` to `to` [steps, columns].
void CopyStream(const darkroom::History& from, int64_t stream, uint8_t* to) {
  for (int64_t step = 0; step < from.steps; ++step) {
    const int64_t i = step * from.streams + stream;
    to = std::copy_n(&from.states[i * from.numbers], from.numbers, to);
    *to++ = from.actions[i];
    *to++ = from.rewards[i];
    to = std::copy_n(&from.next_states[i * from.numbers], from.numbers, to);
  }
}

absl::Status CheckShape(const TableOptions& options, int task,
                        const darkroom::HistoryShape& shape, int64_t steps,
                        int64_t streams) {
  for (const auto& [field, wanted, has] :
       {std::tuple("steps", steps, shape.steps),
        std::tuple("streams", streams, shape.streams)}) {
    if (has >= wanted) continue;
    return FieldError(
        field, absl::StrCat("is ", wanted, ", but ", options.path, " has only ",
                            has, " ", field, " of task ", task));
  }
  return absl::OkStatus();
}

// The requested tasks that are in the file.
absl::StatusOr<std::vector<int>> TasksIn(const darkroom::HistoryReader& file,
                                         const TableOptions& options) {
  std::vector<int> tasks;
  for (const int task : options.tasks) {
    if (std::binary_search(file.tasks().begin(), file.tasks().end(), task)) {
      tasks.push_back(task);
    }
  }
  if (!tasks.empty()) return tasks;
  std::vector<int> wanted = options.tasks;
  std::sort(wanted.begin(), wanted.end());
  return FieldError(
      "path",
      absl::StrCat(options.path, " has histories of ", file.tasks().size(),
                   " tasks (", absl::StrJoin(file.tasks(), ", "),
                   "), but of none of those that are wanted: ",
                   absl::StrJoin(wanted, ", ")));
}

// Reads the tasks' histories into `table`. Returns the file's errors, and a
// FieldError of "path" if it has none of the tasks, or of "steps" or "streams"
// if it has fewer.
absl::Status Load(const darkroom::HistoryReader& file,
                  const Environment& environment, const TableOptions& options,
                  HistoryTable* table) {
  CAPSTAN_ASSIGN_OR_RETURN(table->tasks, TasksIn(file, options));
  table->tasks_of_file = file.tasks();
  const EnvironmentSpec spec = environment.spec();
  table->columns.numbers = spec.numbers;
  int64_t streams = options.streams;
  int64_t& steps = table->steps;
  steps = options.steps;
  int64_t next = 0;
  for (const int task : table->tasks) {
    const auto shape = file.Shape(task);
    if (!shape.ok()) return FieldError("path", shape.status().message());
    // What isn't asked for is as in the first task.
    if (streams == 0) streams = shape->streams;
    if (steps == 0) steps = std::min(kDefaultSteps, shape->steps);
    CAPSTAN_RETURN_IF_ERROR(CheckShape(options, task, *shape, steps, streams));
    if (next == 0) {
      table->histories = streams * static_cast<int64_t>(table->tasks.size());
      table->bytes.resize(table->offset(table->histories));
    }
    const auto history = file.Read(task, spec, steps, streams);
    if (!history.ok()) return FieldError("path", history.status().message());
    const absl::Status happened =
        CheckHistory(environment, options.path, task, *history);
    if (!happened.ok()) return FieldError("path", happened.message());
    for (int64_t stream = 0; stream < streams; ++stream) {
      CopyStream(*history, stream, &table->bytes[table->offset(next++)]);
    }
  }
  return absl::OkStatus();
}

class TokenWriter {
 public:
  TokenWriter(const HistoryColumns& columns, uint8_t* transitions,
              uint8_t* kinds)
      : columns_(columns), transitions_(transitions), kinds_(kinds) {}

  void Transitions(const uint8_t* history, const StepRange& span) {
    std::memcpy(transitions_, history + span.begin * columns_.count(),
                span.size() * columns_.count());
    Kinds(HistoryToken::kTransition, span.size());
  }
  void Marker(HistoryToken kind) { Empty(kind, 1); }
  void Query(const uint8_t* transition) {
    uint8_t* const to = transitions_;
    Empty(HistoryToken::kQuery, 1);
    std::copy_n(transition, columns_.numbers, to);
  }
  void Padding(const uint8_t* kinds_end) {
    Empty(HistoryToken::kPadding, kinds_end - kinds_);
  }

 private:
  void Empty(HistoryToken kind, int64_t count) {
    std::memset(transitions_, 0, count * columns_.count());
    Kinds(kind, count);
  }
  void Kinds(HistoryToken kind, int64_t count) {
    std::memset(kinds_, static_cast<int>(kind), count);
    transitions_ += count * columns_.count();
    kinds_ += count;
  }

  const HistoryColumns columns_;
  uint8_t* transitions_;
  uint8_t* kinds_;
};

template <typename T>
T* Tensor(Batch* batch, const char* name, at::IntArrayRef shape,
          c10::ScalarType type) {
  at::Tensor& tensor = (*batch)[name];
  if (!tensor.defined() || tensor.sizes() != shape) {
    tensor = at::empty(shape, type);
  }
  return tensor.mutable_data_ptr<T>();
}

absl::Status CheckNumbers(const Config& config) {
  const bool compressed = config.mode() == Config::COMPRESSED;
  if (compressed && (config.n_transit() != 0 || config.short_contexts())) {
    return FieldError(
        config.short_contexts() ? "short_contexts" : "n_transit",
        "is for mode PLAIN; here region says how long a sample is");
  }
  if (!compressed && (config.region() != 0 || config.skip_last_action())) {
    return FieldError(config.region() != 0 ? "region" : "skip_last_action",
                      "is for mode COMPRESSED; PLAIN has no regions");
  }
  for (const auto& [field, value, least] :
       {std::tuple("n_transit", config.n_transit(), 2),
        std::tuple("region", config.region(), 2),
        std::tuple("steps", config.steps(), 1),
        std::tuple("streams", config.streams(), 1)}) {
    if (value == 0 || value >= least) continue;  // 0: the default
    return FieldError(field,
                      absl::StrCat("must be at least ", least,
                                   ", or 0 for the default, is ", value));
  }
  return absl::OkStatus();
}

HistoryForm FormOf(const Config& config) {
  HistoryForm form;
  form.compressed = config.mode() == Config::COMPRESSED;
  const int64_t length = form.compressed ? config.region() : config.n_transit();
  const int64_t usual = form.compressed ? kDefaultRegion : kDefaultTransit;
  form.length = length > 0 ? length : usual;
  form.last_action = !config.skip_last_action();
  form.terminal_states = config.episode_end() == Config::TERMINAL_IN_EVALUATION;
  return form;
}

}  // namespace

SampleLayout::SampleLayout(const HistoryForm& form, bool short_contexts,
                           int64_t steps, int64_t histories)
    : form_(form),
      columns_{form.environment->spec().numbers},
      histories_(histories) {
  if (form.compressed) {
    per_history_ = steps / form.length * form.length;
  } else {
    first_ = short_contexts ? 0 : form.length - 1;
    per_history_ = std::max<int64_t>(0, steps - first_);
  }
}

Sample SampleLayout::At(int64_t index) const {
  Sample sample;
  sample.history = index / per_history_;
  sample.query = first_ + index % per_history_;
  if (form_.compressed) {
    const int64_t begin = sample.query / form_.length * form_.length;
    sample.previous = {std::max<int64_t>(0, begin - form_.length), begin};
    sample.current = {begin, sample.query};
    sample.ends_region = sample.query - begin == form_.length - 1;
  } else {
    sample.current = {std::max<int64_t>(0, sample.query - form_.length + 1),
                      sample.query};
  }
  return sample;
}

int64_t SampleLayout::Length(const Sample& sample) const {
  int64_t length = sample.current.size() + 1;
  if (form_.compressed) {
    length += 1;
    if (sample.previous.size() > 0) length += sample.previous.size() + 2;
  }
  return length;
}

void SampleLayout::Write(const Sample& sample, const uint8_t* history,
                         int64_t tokens, uint8_t* transitions,
                         uint8_t* kinds) const {
  TokenWriter writer(columns_, transitions, kinds);
  if (sample.previous.size() > 0) {
    writer.Marker(HistoryToken::kStart);
    writer.Transitions(history, sample.previous);
    writer.Marker(HistoryToken::kEnd);
  }
  if (form_.compressed) writer.Marker(HistoryToken::kStart);
  writer.Transitions(history, sample.current);
  writer.Query(history + sample.query * columns_.count());
  writer.Padding(kinds + tokens);
}

AdHistory::AdHistory(const Config& config, HistoryForm form,
                     std::shared_ptr<const HistoryTable> table)
    : config_(config),
      form_(std::move(form)),
      table_(std::move(table)),
      split_(darkroom::SplitOf(*form_.environment)),
      layout_(form_, config_.short_contexts(), table_->steps,
              table_->histories) {}

absl::StatusOr<std::unique_ptr<AdHistory>> AdHistory::Create(
    const Config& config) {
  if (config.path().empty()) {
    return FieldError("path", "is not set: name a file of learning histories");
  }
  CAPSTAN_RETURN_IF_ERROR(CheckNumbers(config));
  HistoryForm form = FormOf(config);
  TableOptions options;
  options.path = config.path();
  options.streams = config.streams();
  if (options.streams == 0 && config.split() == Config::TEST) {
    options.streams = 1;
  }
  options.steps = config.steps();
  const auto file = darkroom::HistoryReader::Open(options.path);
  if (!file.ok()) return FieldError("path", file.status().message());
  CAPSTAN_ASSIGN_OR_RETURN(form.environment, FindEnvironment(**file, config));
  const darkroom::Split split = darkroom::SplitOf(*form.environment);
  options.tasks = config.split() == Config::TEST ? split.test : split.train;
  auto table = std::make_shared<HistoryTable>();
  CAPSTAN_RETURN_IF_ERROR(
      Load(**file, *form.environment, options, table.get()));
  if (table->steps < form.length) {
    return FieldError(
        "steps",
        absl::StrCat("is ", table->steps, ", but a sample is of ", form.length,
                     " (", form.compressed ? "region" : "n_transit", ")"));
  }
  return std::unique_ptr<AdHistory>(
      new AdHistory(config, std::move(form), std::move(table)));
}

absl::Status AdHistory::Read(absl::Span<const int64_t> indices,
                             Batch* batch) const {
  const int64_t count = static_cast<int64_t>(indices.size());
  const HistoryColumns& columns = layout_.columns();
  int64_t tokens = 0;
  for (const int64_t index : indices) {
    if (index < 0 || index >= size()) {
      return absl::OutOfRangeError(absl::StrCat(config_.path(),
                                                ": there is no sample ", index,
                                                ", only 0 to ", size() - 1));
    }
    tokens = std::max(tokens, layout_.Length(layout_.At(index)));
  }
  auto* transitions = Tensor<uint8_t>(
      batch, "transitions", {count, tokens, columns.count()}, at::kByte);
  auto* kinds = Tensor<uint8_t>(batch, "kinds", {count, tokens}, at::kByte);
  auto* lengths = Tensor<int64_t>(batch, "lengths", {count}, at::kLong);
  auto* actions = Tensor<int64_t>(batch, "action", {count}, at::kLong);
  int64_t* types = form_.compressed ? Tensor<int64_t>(batch, "token_type",
                                                      {count}, at::kLong)
                                    : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    const Sample sample = layout_.At(indices[i]);
    const uint8_t* history = &table_->bytes[table_->offset(sample.history)];
    layout_.Write(sample, history, tokens,
                  transitions + i * tokens * columns.count(),
                  kinds + i * tokens);
    lengths[i] = layout_.Length(sample);
    const bool learned = form_.last_action || !sample.ends_region;
    actions[i] =
        learned ? history[sample.query * columns.count() + columns.action()]
                : kIgnoredTarget;
    if (types != nullptr) types[i] = sample.ends_region ? kEnd : kNone;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DatasetReader>> AdHistory::Validation() const {
  if (config_.split() == Config::TEST || CountInFile(split_.test) == 0) {
    return nullptr;
  }
  Config config = config_;
  config.set_split(Config::TEST);
  config.set_streams(1);
  config.set_shuffle(false);
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<AdHistory> test, Create(config));
  return std::unique_ptr<DatasetReader>(std::move(test));
}

std::vector<int> AdHistory::tasks() const {
  // Playing a task needs no history of it.
  return config_.split() == Config::TEST ? split_.test : table_->tasks;
}

absl::StatusOr<std::string> AdHistory::Digest() const {
  return DigestOfValues(table_->bytes);
}

int64_t AdHistory::CountInFile(const std::vector<int>& tasks) const {
  const std::vector<int>& file = table_->tasks_of_file;
  return std::count_if(tasks.begin(), tasks.end(), [&](int task) {
    return std::binary_search(file.begin(), file.end(), task);
  });
}

std::vector<std::string> AdHistory::notes() const {
  const size_t all = split_.train.size() + split_.test.size();
  if (config_.split() == Config::TEST || table_->tasks_of_file.size() == all) {
    return {};
  }
  const int64_t held_out = CountInFile(split_.test);
  std::string note = absl::StrCat(
      config_.path(), " has histories of ", table_->tasks_of_file.size(),
      " of the ", all, " tasks: ", table_->tasks.size(), " are trained on, ",
      held_out, " of the ", split_.test.size(),
      " that are held out can be evaluated on");
  if (held_out == 0) {
    std::vector<int> test = split_.test;
    std::sort(test.begin(), test.end());
    absl::StrAppend(&note, " (", absl::StrJoin(test, ", "), ")");
  }
  return {note + "."};
}

}  // namespace capstan::ad_history
