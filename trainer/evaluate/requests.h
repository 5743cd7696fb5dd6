// SPDX-License-Identifier: Apache-2.0
//
// From a task and its rows of data to what a model is asked.
#ifndef CAPSTAN_TRAINER_EVALUATE_REQUESTS_H_
#define CAPSTAN_TRAINER_EVALUATE_REQUESTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/evaluate/task.h"

namespace capstan::evaluate {

// A row, and where it is: "arc.jsonl:3".
struct Document {
  Json row;
  std::string place;
};

// Rows of a .jsonl (one object a line), or a .json (a list of objects, or
// {"data": [..]}). INVALID_ARGUMENT names the place.
absl::StatusOr<std::vector<Document>> ReadDocuments(const std::string& path);

// One question to the model.
struct Request {
  std::string place;
  std::string context;
  // Replaces the context, if not empty.
  std::vector<int64_t> prompt;
  // Each with its delimiter in front: all choices, or the one target; none if
  // the model is to write.
  std::vector<std::string> continuations;
  // Of the choices, in characters, for acc_norm.
  std::vector<int64_t> characters;
  // Indices of the right choices.
  std::vector<int64_t> gold;
  // What a text is compared with; the best counts.
  std::vector<std::string> references;
};

// A request for each document, in order. Few-shot examples are the first
// task.num_fewshot of `examples` that aren't the document itself. An error
// names the document's place and the task's key.
absl::StatusOr<std::vector<Request>> MakeRequests(
    const Task& task, const std::vector<Document>& documents,
    const std::vector<Document>& examples);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_TRAINER_EVALUATE_REQUESTS_H_
