// SPDX-License-Identifier: Apache-2.0
#include "desk/doctor/pipeline.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "desk/init/trial.h"
#include "desk/init/undo.h"
#include "trainer/data/data_loader.h"
#include "trainer/metrics/console.h"
#include "trainer/session/run_parts.h"

namespace capstan::doctor {
namespace {

constexpr double kReadSeconds = 1.0;
constexpr double kLimitSeconds = 120.0;

absl::Status MeasureReading(const TrainJob& job, PipelineFacts* facts) {
  const RunConfig& config = job.loaded.config;
  const DatasetReader& data = *job.parts.train_data;
  SampleSequence sequence(
      OrderOfRun(config, job.parts, job.batch.global_batch_size));
  std::vector<int64_t> samples(job.batch.micro_batch_size);
  int64_t position = 0;
  int64_t tokens = 0;
  const double begin = MonotonicSeconds();
  while (position == 0 || MonotonicSeconds() < begin + kReadSeconds) {
    sequence.At(position, absl::MakeSpan(samples));
    CAPSTAN_RETURN_IF_ERROR(
        ReadBatch(data, samples, c10::Device(c10::kCPU)).status());
    position += job.batch.micro_batch_size;
    for (const int64_t sample : samples) tokens += data.sample_length(sample);
  }
  const auto count = static_cast<double>(position);
  facts->read_per_second = count / (MonotonicSeconds() - begin);
  facts->tokens = static_cast<double>(tokens) / count;
  return absl::OkStatus();
}

// The last line of a log that isn't empty.
std::string LastLine(const std::string& path) {
  std::string text = ReadWholeFile(path).value_or("");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

std::string Rate(double samples, double tokens) {
  return tokens > 0 ? ShortCount(samples * tokens) + " tokens/s"
                    : ShortCount(samples) + " samples/s";
}

}  // namespace

absl::StatusOr<PipelineFacts> MeasurePipeline(
    const Prepared& prepared, const std::vector<std::string>& words) {
  PipelineFacts facts;
  const TrainJob& job = prepared.job;
  const ScratchFolder scratch;
  CAPSTAN_RETURN_IF_ERROR(scratch.status());
  const init::Undo remove(
      [&scratch] { RemoveTree(scratch.path()).IgnoreError(); });
  const absl::optional<double> seconds =
      init::StepSecondsOf(words, scratch.path(), kLimitSeconds);
  if (!seconds.has_value()) {
    return WithCode(
        absl::FailedPreconditionError(absl::StrCat(
            "no step of the run ended within ", kLimitSeconds,
            " s: ", PrintableText(LastLine(scratch.path() + "/log")))),
        "doctor/no-step");
  }
  const int readers =
      MeshOf(job.loaded.config.train(), prepared.processes).data;
  facts.needed_per_second =
      static_cast<double>(job.batch.global_batch_size) / readers / *seconds;
  CAPSTAN_RETURN_IF_ERROR(MeasureReading(job, &facts));
  return facts;
}

Finding JudgePipeline(const PipelineFacts& facts) {
  Finding finding = {
      Level::kOk, "data",
      absl::StrCat("a rank reads ", Rate(facts.read_per_second, facts.tokens),
                   ", and its steps need ",
                   Rate(facts.needed_per_second, facts.tokens)),
      ""};
  // No failure: a step's time has its wait for data, so that the two are about
  // equal where all wait.
  if (facts.read_per_second < facts.needed_per_second) {
    finding.Warn(
        "steps wait for data: put it on a faster disk, tokenize it once "
        "(trainer tokenize), or give ranks more cores");
  } else if (facts.read_per_second < 2 * facts.needed_per_second) {
    finding.Warn(
        "that is close: tokenize the data once (trainer tokenize), or put it "
        "on a faster disk");
  }
  return finding;
}

}  // namespace capstan::doctor
