// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/forgiving_reader.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace {

absl::Status ReadOrCatch(const DatasetReader& reader,
                         absl::Span<const int64_t> samples, Batch* batch) {
  try {
    return reader.Read(samples, batch);
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

bool IsASamplesFault(const absl::Status& status) {
  return !absl::IsResourceExhausted(status) && !absl::IsUnavailable(status) &&
         !absl::IsCancelled(status);
}

}  // namespace

absl::Status ForgivingReader::Read(absl::Span<const int64_t> indices,
                                   Batch* batch) const {
  std::vector<int64_t> samples(indices.begin(), indices.end());
  if (any()) {
    for (int64_t& sample : samples) sample = Replaced(sample);
  }
  const absl::Status status = ReadOrCatch(reader_, samples, batch);
  if (status.ok() || !IsASamplesFault(status)) return status;
  for (int64_t& sample : samples) {
    CAPSTAN_ASSIGN_OR_RETURN(sample, FirstReadable(sample));
  }
  // The failed read may have left anything in it.
  batch->clear();
  return ReadOrCatch(reader_, samples, batch);
}

absl::StatusOr<int64_t> ForgivingReader::FirstReadable(int64_t sample) const {
  for (int64_t tried = 0; tried < size(); ++tried) {
    sample = Replaced(sample);
    Batch alone;
    const absl::Status status = ReadOrCatch(reader_, {sample}, &alone);
    if (status.ok()) return sample;
    if (!IsASamplesFault(status)) return status;
    CAPSTAN_RETURN_IF_ERROR(Remember(sample, status));
  }
  return absl::DataLossError("no sample of the data can be read");
}

absl::Status ForgivingReader::Remember(int64_t sample,
                                       const absl::Status& why) const {
  std::lock_guard<std::mutex> lock(mutex_);
  bad_.emplace(sample, std::string(why.message()));
  any_ = true;
  const auto count = static_cast<int64_t>(bad_.size());
  if (count <= most_) return absl::OkStatus();
  return Annotate(
      why, absl::StrCat("sample ", sample, " can't be read, as ", count - 1,
                        " others couldn't, and "
                        "train.skip_bad_samples is ",
                        most_));
}

int64_t ForgivingReader::Replaced(int64_t sample) const {
  std::lock_guard<std::mutex> lock(mutex_);
  // Ends unless no sample can be read at all.
  for (size_t steps = 0; steps < bad_.size() && bad_.count(sample) > 0;
       ++steps) {
    sample = After(sample);
  }
  return sample;
}

std::vector<BadSample> ForgivingReader::BadAmong(
    absl::Span<const int64_t> samples) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::set<int64_t> met;
  for (int64_t sample : samples) {
    // All of the run of bad samples that begins here.
    while (bad_.count(sample) > 0 && met.insert(sample).second) {
      sample = After(sample);
    }
  }
  std::vector<BadSample> among;
  for (const int64_t sample : met) among.push_back({sample, bad_.at(sample)});
  return among;
}

std::vector<BadSample> ForgivingReader::All() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<BadSample> all;
  for (const auto& [sample, why] : bad_) all.push_back({sample, why});
  return all;
}

}  // namespace capstan
