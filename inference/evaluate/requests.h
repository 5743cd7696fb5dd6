// SPDX-License-Identifier: Apache-2.0
//
// From a task and its rows of data to what a model is asked.
#ifndef CAPSTAN_INFERENCE_EVALUATE_REQUESTS_H_
#define CAPSTAN_INFERENCE_EVALUATE_REQUESTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/evaluate/documents.h"
#include "inference/evaluate/task.h"

namespace capstan::evaluate {

// A text and what may follow it.
struct Question {
  std::string context;
  // Each with its delimiter in front; none if the model is to write.
  std::vector<std::string> continuations;
};

// What one row asks of the model.
struct Request {
  std::string place;
  Json row;
  // One with all choices or the one target; several if the choices stand in the
  // contexts, each with the same continuation. Of kRolling: the whole text as
  // the continuation of nothing.
  std::vector<Question> questions;
  // The choices' own likelihoods, without a context; for acc_mutual_info.
  bool asks_unconditional = false;
  // Replaces the context, if not empty.
  std::vector<int64_t> prompt;
  // The texts of the choices.
  std::vector<std::string> choices;
  // Indices of the right choices.
  std::vector<int64_t> gold;
  // What a text is compared with; the best counts.
  std::vector<std::string> references;
};

// A request for each document, in order, after process_docs. Examples for
// few-shot prompts are the task's own, or of `examples`, or, if that is empty,
// the other documents. An error names the document's place and the task's key.
// `first`: only of so many documents; 0: of all.
absl::StatusOr<std::vector<Request>> MakeRequests(
    const Task& task, const std::vector<Document>& documents,
    const std::vector<Document>& examples, int64_t first = 0);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_REQUESTS_H_
