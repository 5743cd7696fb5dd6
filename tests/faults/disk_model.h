// SPDX-License-Identifier: Apache-2.0
//
// A disk that keeps only what was flushed to it: replays the system calls of a
// program, as strace has written them, and says what would be left if the
// machine lost its power after each.
#ifndef CAPSTAN_TESTS_FAULTS_DISK_MODEL_H_
#define CAPSTAN_TESTS_FAULTS_DISK_MODEL_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace capstan {

// A completed system call: its name and its arguments as strace prints them,
// with strings unquoted and descriptors as the paths that they stand for.
struct SystemCall {
  double end = 0.0;  // seconds
  std::string name;
  std::vector<std::string> arguments;
  std::string result;
};

// strace's arguments that make the files PREFIX.PID which ReadTrace reads.
std::vector<std::string> StraceArguments(const std::string& prefix);

// All threads' calls that succeeded, in the order in which they ended.
std::vector<SystemCall> ReadTrace(const std::string& prefix);

// The files below a folder that is empty at first.
class DiskModel {
 public:
  explicit DiskModel(std::string root) : root_(std::move(root)) {}

  // Whether that may have changed what is left.
  bool Apply(const SystemCall& call);

  // What is left: files with what was flushed of each, under the names that
  // were flushed or, with `all_names`, under all (a file system may write names
  // before they are flushed, and before the data). Writes it into an empty
  // folder.
  void Restore(const std::string& folder, bool all_names) const;

 private:
  struct Node {
    bool folder = false;
    std::string data;  // a file's
    std::string flushed;
    std::map<std::string, std::shared_ptr<Node>> entries;  // a folder's
    std::map<std::string, std::shared_ptr<Node>> flushed_entries;
  };
  using NodePtr = std::shared_ptr<Node>;

  // The path below root_, in parts; false if it isn't below.
  bool Parts(const std::string& path, std::vector<std::string>* parts) const;
  NodePtr Find(const std::vector<std::string>& parts) const;
  NodePtr FindPath(const std::string& path) const;
  // The folder that holds the path, and its name there; null: not below root_.
  NodePtr Parent(const std::string& path, std::string* name) const;
  bool Rename(const std::string& from, const std::string& to, bool exchange);
  static void Write(const Node& node, const std::string& path, bool all_names);

  const std::string root_;
  NodePtr top_ = [] {
    auto top = std::make_shared<Node>();
    top->folder = true;
    return top;
  }();
};

}  // namespace capstan

#endif  // CAPSTAN_TESTS_FAULTS_DISK_MODEL_H_
