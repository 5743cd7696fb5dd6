// SPDX-License-Identifier: Apache-2.0
#include "datasets/ad_history/sample_layout.h"

#include <algorithm>
#include <cstring>

#include "plugins/algorithm_distillation/history_model.h"

namespace capstan::ad_history {
namespace {

static_assert(kTransitionBytes == kHistoryColumns,
              "the table has the columns that models read");

// Writes consecutive tokens.
class TokenWriter {
 public:
  TokenWriter(uint8_t* transitions, uint8_t* kinds)
      : transitions_(transitions), kinds_(kinds) {}

  void Transitions(const uint8_t* history, const StepRange& span) {
    std::memcpy(transitions_, history + span.begin * kTransitionBytes,
                span.size() * kTransitionBytes);
    Kinds(HistoryToken::kTransition, span.size());
  }
  void Marker(HistoryToken kind) { Empty(kind, 1); }
  void Query(const uint8_t* transition) {
    uint8_t* const to = transitions_;
    Empty(HistoryToken::kQuery, 1);
    to[kHistoryRow] = transition[kHistoryRow];
    to[kHistoryColumn] = transition[kHistoryColumn];
  }
  void Padding(const uint8_t* kinds_end) {
    Empty(HistoryToken::kPadding, kinds_end - kinds_);
  }

 private:
  void Empty(HistoryToken kind, int64_t count) {
    std::memset(transitions_, 0, count * kTransitionBytes);
    Kinds(kind, count);
  }
  void Kinds(HistoryToken kind, int64_t count) {
    std::memset(kinds_, static_cast<int>(kind), count);
    transitions_ += count * kTransitionBytes;
    kinds_ += count;
  }

  uint8_t* transitions_;
  uint8_t* kinds_;
};

}  // namespace

SampleLayout::SampleLayout(const HistoryForm& form, bool short_contexts,
                           int64_t steps, int64_t histories)
    : form_(form), histories_(histories) {
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
  TokenWriter writer(transitions, kinds);
  if (sample.previous.size() > 0) {
    writer.Marker(HistoryToken::kStart);
    writer.Transitions(history, sample.previous);
    writer.Marker(HistoryToken::kEnd);
  }
  if (form_.compressed) writer.Marker(HistoryToken::kStart);
  writer.Transitions(history, sample.current);
  writer.Query(history + sample.query * kTransitionBytes);
  writer.Padding(kinds + tokens);
}

}  // namespace capstan::ad_history
