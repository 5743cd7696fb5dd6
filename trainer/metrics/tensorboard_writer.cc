// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/tensorboard_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/metrics/tensorboard_event.pb.h"

namespace capstan {
namespace {

constexpr std::chrono::seconds kFlushEvery(1);
constexpr size_t kMaxWaitingBytes = 1 << 20;
constexpr int kDtString = 7;
constexpr int kBuckets = 30;  // per histogram; as many as TensorBoard shows

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) {
    out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
}

// tensorflow's core/lib/hash/crc32c.h: CRCs of data that contains CRCs are
// weak, hence the mask.
uint32_t MaskedCrc(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') {
    return "localhost";
  }
  return name;
}

void AddScalar(const std::string& tag, double value,
               tensorboard::Summary* summary) {
  tensorboard::Summary::Value* const scalar = summary->add_value();
  scalar->set_tag(tag);
  scalar->set_simple_value(static_cast<float>(value));
}

// Equal-width buckets. `values` are finite and not empty.
void FillHistogram(const std::vector<double>& values,
                   tensorboard::Histogram* histogram) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const double low = *least;
  const double width = (*most - low) / kBuckets;
  std::vector<double> counts(width > 0.0 ? kBuckets : 1, 0.0);
  double sum = 0.0, squares = 0.0;
  for (const double value : values) {
    const double bucket = width > 0.0 ? (value - low) / width : 0.0;
    counts[std::min(static_cast<size_t>(bucket), counts.size() - 1)] += 1.0;
    sum += value;
    squares += value * value;
  }
  histogram->set_min(low);
  histogram->set_max(*most);
  histogram->set_num(static_cast<double>(values.size()));
  histogram->set_sum(sum);
  histogram->set_sum_squares(squares);
  for (size_t i = 0; i < counts.size(); ++i) {
    const bool last = i + 1 == counts.size();
    histogram->add_bucket_limit(
        last ? *most : low + width * static_cast<double>(i + 1));
    histogram->add_bucket(counts[i]);
  }
}

}  // namespace

void AppendTfRecord(const std::string& data, std::string* records) {
  std::string length;
  AppendLittleEndian(data.size(), 8, &length);
  records->append(length);
  AppendLittleEndian(MaskedCrc(length), 4, records);
  records->append(data);
  AppendLittleEndian(MaskedCrc(data), 4, records);
}

absl::StatusOr<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::Open(
    const std::string& folder, int64_t first_step, const std::string& unit) {
  CAPSTAN_RETURN_IF_ERROR(Annotate(MakeFolder(folder), "TensorBoard's folder"));
  const std::string path = absl::StrCat(
      folder, "/events.out.tfevents.", absl::ToUnixSeconds(absl::Now()), ".",
      HostName(), ".", static_cast<int64_t>(getpid()));
  CAPSTAN_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Open(path, OutputFile::Start::kAtEnd));
  auto writer = absl::WrapUnique(new TensorBoardWriter(std::move(file), unit));
  writer->NewEvent(/*step=*/0)->set_file_version("brain.Event:2");
  CAPSTAN_RETURN_IF_ERROR(writer->Add());
  if (first_step > 0) {
    writer->NewEvent(first_step + 1)
        ->mutable_session_log()
        ->set_status(tensorboard::SessionLog::START);
    CAPSTAN_RETURN_IF_ERROR(writer->Add());
  }
  CAPSTAN_RETURN_IF_ERROR(writer->Flush());
  return writer;
}

TensorBoardWriter::TensorBoardWriter(OutputFile file, const std::string& unit)
    : file_(std::move(file)),
      rate_tag_(absl::StrCat("train/", unit, "_per_second")),
      event_(std::make_unique<tensorboard::Event>()),
      last_flush_(std::chrono::steady_clock::now()) {}

TensorBoardWriter::~TensorBoardWriter() { Flush().IgnoreError(); }

absl::Status TensorBoardWriter::Step(const StepMetrics& metrics) {
  tensorboard::Summary* const summary =
      NewEvent(metrics.step)->mutable_summary();
  AddScalar("train/loss", metrics.loss, summary);
  AddScalar("train/lr", metrics.lr, summary);
  AddScalar("train/grad_norm", metrics.grad_norm, summary);
  AddScalar(rate_tag_, metrics.tokens_per_second, summary);
  if (metrics.mfu.has_value()) AddScalar("train/mfu", *metrics.mfu, summary);
  if (metrics.gpu_memory.has_value()) {
    AddScalar("gpu/peak_gib",
              static_cast<double>(metrics.gpu_memory->peak_allocated) /
                  (int64_t{1} << 30),
              summary);
    AddScalar(
        "gpu/reserved_gib",
        static_cast<double>(metrics.gpu_memory->reserved) / (int64_t{1} << 30),
        summary);
  }
  for (const auto& [tag, value] : metrics.tagged) {
    AddScalar(tag, value, summary);
  }
  return Add();
}

absl::Status TensorBoardWriter::Scalars(int64_t step,
                                        const TaggedNumbers& tagged) {
  tensorboard::Summary* const summary = NewEvent(step)->mutable_summary();
  for (const auto& [tag, value] : tagged) AddScalar(tag, value, summary);
  return Add();
}

absl::Status TensorBoardWriter::Histogram(int64_t step, const std::string& tag,
                                          const std::vector<double>& values) {
  std::vector<double> finite;
  for (const double value : values) {
    if (std::isfinite(value)) finite.push_back(value);
  }
  if (finite.empty()) return absl::OkStatus();
  tensorboard::Summary::Value* const value =
      NewEvent(step)->mutable_summary()->add_value();
  value->set_tag(tag);
  FillHistogram(finite, value->mutable_histo());
  return Add();
}

absl::Status TensorBoardWriter::HParams(
    const std::map<std::string, std::string>& settings) {
  tensorboard::HParamsPluginData data;
  tensorboard::SessionStartInfo* const start =
      data.mutable_session_start_info();
  start->set_start_time_secs(
      absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  for (const auto& [name, text] : settings) {
    tensorboard::HParamValue& value = (*start->mutable_hparams())[name];
    double number = 0.0;
    if (absl::SimpleAtod(text, &number) && std::isfinite(number)) {
      value.set_number_value(number);
    } else {
      value.set_string_value(text);
    }
  }
  tensorboard::Summary::Value* const value =
      NewEvent(/*step=*/0)->mutable_summary()->add_value();
  value->set_tag("_hparams_/session_start_info");
  auto* const plugin = value->mutable_metadata()->mutable_plugin_data();
  plugin->set_plugin_name("hparams");
  plugin->set_content(data.SerializeAsString());
  return Add();
}

absl::Status TensorBoardWriter::Text(int64_t step,
                                     const std::string& markdown) {
  tensorboard::Summary::Value* const value =
      NewEvent(step)->mutable_summary()->add_value();
  value->set_tag("samples");
  value->mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  value->mutable_tensor()->set_dtype(kDtString);
  value->mutable_tensor()->mutable_tensor_shape();
  value->mutable_tensor()->add_string_val(markdown);
  return Add();
}

tensorboard::Event* TensorBoardWriter::NewEvent(int64_t step) {
  event_->Clear();
  event_->set_wall_time(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  event_->set_step(step);
  return event_.get();
}

absl::Status TensorBoardWriter::Add() {
  event_->SerializeToString(&event_bytes_);
  AppendTfRecord(event_bytes_, &waiting_);
  if (waiting_.size() < kMaxWaitingBytes &&
      std::chrono::steady_clock::now() - last_flush_ < kFlushEvery) {
    return absl::OkStatus();
  }
  return Flush();
}

absl::Status TensorBoardWriter::Flush() {
  last_flush_ = std::chrono::steady_clock::now();
  const absl::Status written = file_.Append(waiting_);
  waiting_.clear();
  return written;
}

}  // namespace capstan
