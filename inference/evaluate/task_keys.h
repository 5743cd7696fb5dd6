// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_EVALUATE_TASK_KEYS_H_
#define CAPSTAN_INFERENCE_EVALUATE_TASK_KEYS_H_

#include <yaml-cpp/yaml.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "inference/evaluate/task.h"

namespace capstan::evaluate {

// A value of a task's file, and the folder that paths in it start from.
struct TaskKey {
  TaskKey() = default;
  TaskKey(const TaskKey&) = default;
  // YAML::Node's own assignment would change all that share the old value.
  TaskKey& operator=(const TaskKey& other) {
    node.reset(other.node);
    folder = other.folder;
    return *this;
  }

  YAML::Node node;
  std::string folder;
};

// The keys of a task's file and of those that it includes; its own go before
// included ones, and later includes before earlier ones. Mistakes are collected
// in status(), which keeps the first.
class TaskKeys {
 public:
  // INVALID_ARGUMENT names the file and the line.
  static absl::StatusOr<TaskKeys> Read(const std::string& path);

  // Of keys that stand in a list in the file at `path`.
  static absl::StatusOr<TaskKeys> Of(const std::string& path,
                                     std::map<std::string, TaskKey> keys);

  const std::string& path() const { return path_; }
  const absl::Status& status() const { return status_; }
  // All, also those that are null.
  const std::map<std::string, TaskKey>& all() const { return keys_; }

  // All as text, by key, with the folders: equal for equal tasks of one file.
  std::map<std::string, std::string> AsText() const;

  // Adds "PATH: KEY PROBLEM".
  void Fail(absl::string_view key, absl::string_view problem);
  // Replaces a key's value.
  void Set(const std::string& key, TaskKey value);

  // Whether the key has a value other than null. What was asked for counts as
  // known.
  bool Has(const std::string& key);
  // An error for each key with a value that nobody asked for, but `ignored`.
  void FailUnknown(const std::set<std::string>& ignored);

  // Has(key) must hold.
  const TaskKey& At(const std::string& key) const { return keys_.at(key); }

  // The key's value, or `otherwise`, also if it has another type.
  template <typename T>
  T Get(const std::string& key, T otherwise) {
    return Has(key) ? As<T>(key, keys_.at(key).node, std::move(otherwise))
                    : std::move(otherwise);
  }
  template <typename T>
  T As(absl::string_view key, const YAML::Node& node, T otherwise) {
    if (!node) return otherwise;
    if (IsFunction(node)) {
      Fail(key, absl::StrCat("is the Python function ", FunctionName(node),
                             ", which can't be used there"));
      return otherwise;
    }
    try {
      return node.as<T>();
    } catch (const YAML::Exception&) {
      Fail(key,
           absl::StrCat("in line ", node.Mark().line + 1, " has a wrong type"));
      return otherwise;
    }
  }
  // A name that results go by: not empty, and one line.
  std::string GetName(const std::string& key, const std::string& otherwise);
  // A text, or a list of texts.
  std::vector<std::string> Texts(absl::string_view key, const YAML::Node& node);
  // As YAML's core schema reads it: numbers, booleans and null are such unless
  // they are quoted.
  Json Value(absl::string_view key, const YAML::Node& node);

  static bool IsFunction(const YAML::Node& node);
  // "utils.process_docs".
  static std::string FunctionName(const YAML::Node& node);

 private:
  absl::Status Include(const std::string& path, int depth);
  absl::Status Included(const TaskKey& include, int depth);

  std::string path_;
  std::map<std::string, TaskKey> keys_;
  std::set<std::string> known_;
  absl::Status status_;
};

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_TASK_KEYS_H_
