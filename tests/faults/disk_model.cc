// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/disk_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/testing/run_folder.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// An argument without quotes or its descriptor's number: `"\x2f"` is "/",
// `5</tmp/f>` is "/tmp/f".
std::string Plain(absl::string_view text) {
  const size_t quote = text.find('"');
  const size_t angle = text.find('<');
  absl::string_view inside = text;
  if (quote == 0) {
    inside = text.substr(1, text.rfind('"') - 1);
  } else if (angle != absl::string_view::npos && text.back() == '>') {
    inside = text.substr(angle + 1, text.size() - angle - 2);
  }
  std::string plain;
  absl::CUnescape(inside, &plain);
  return plain;
}

// Splits at commas outside quotes, brackets and braces.
std::vector<std::string> Arguments(absl::string_view text) {
  std::vector<std::string> arguments;
  size_t begin = 0;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0 && !quoted)) {
      if (i > begin) arguments.emplace_back(text.substr(begin, i - begin));
      begin = i + 2;  // ", "
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      depth += text[i] == '[' || text[i] == '{';
      depth -= text[i] == ']' || text[i] == '}';
    }
  }
  return arguments;
}

// `17.5 write(3</f>, "\x61", 1) = 1 <0.000012>`; false if it isn't a call that
// has succeeded.
bool ParseLine(absl::string_view line, SystemCall* call) {
  const size_t space = line.find(' ');
  const size_t open = line.find('(');
  const size_t equals = line.rfind(" = ");
  const size_t angle = line.rfind(" <");
  if (space == absl::string_view::npos || open == absl::string_view::npos ||
      equals == absl::string_view::npos || angle == absl::string_view::npos ||
      angle < equals) {
    return false;
  }
  double begin = 0.0;
  double took = 0.0;
  if (!absl::SimpleAtod(line.substr(0, space), &begin) ||
      !absl::SimpleAtod(line.substr(angle + 2, line.size() - angle - 3),
                        &took)) {
    return false;
  }
  call->end = begin + took;
  call->name = std::string(line.substr(space + 1, open - space - 1));
  call->result = std::string(line.substr(equals + 3, angle - equals - 3));
  if (absl::StartsWith(call->result, "-1") ||
      absl::StartsWith(call->result, "?")) {
    return false;
  }
  const size_t close = line.rfind(')', equals);
  call->arguments.clear();
  for (const std::string& argument :
       Arguments(line.substr(open + 1, close - open - 1))) {
    call->arguments.push_back(Plain(argument));
  }
  return true;
}

// A path in a call with a folder's descriptor before it.
std::string Joined(const std::string& folder, const std::string& path) {
  return absl::StartsWith(path, "/") ? path : absl::StrCat(folder, "/", path);
}

}  // namespace

std::vector<std::string> StraceArguments(const std::string& prefix) {
  return {"-ff",
          "-ttt",
          "-T",
          "-y",
          "-xx",
          "-s",
          "100000000",
          "-o",
          prefix,
          "-e",
          "trace=open,openat,creat,write,fsync,fdatasync,ftruncate,rename,"
          "renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir"};
}

std::vector<SystemCall> ReadTrace(const std::string& prefix) {
  std::vector<SystemCall> calls;
  const fs::path path(prefix);
  for (const auto& entry : fs::directory_iterator(path.parent_path())) {
    if (!absl::StartsWith(entry.path().filename().string(),
                          path.filename().string() + ".")) {
      continue;
    }
    std::ifstream file(entry.path());
    SystemCall call;
    for (std::string line; std::getline(file, line);) {
      if (ParseLine(line, &call)) calls.push_back(call);
    }
  }
  std::stable_sort(calls.begin(), calls.end(),
                   [](const auto& a, const auto& b) { return a.end < b.end; });
  return calls;
}

bool DiskModel::Parts(const std::string& path,
                      std::vector<std::string>* parts) const {
  if (!absl::StartsWith(path, root_ + "/") && path != root_) return false;
  *parts = absl::StrSplit(absl::string_view(path).substr(root_.size()), '/',
                          absl::SkipEmpty());
  return true;
}

DiskModel::NodePtr DiskModel::Find(
    const std::vector<std::string>& parts) const {
  NodePtr at = top_;
  for (const std::string& part : parts) {
    const auto found = at->entries.find(part);
    if (found == at->entries.end()) return nullptr;
    at = found->second;
  }
  return at;
}

DiskModel::NodePtr DiskModel::FindPath(const std::string& path) const {
  std::vector<std::string> parts;
  return Parts(path, &parts) ? Find(parts) : nullptr;
}

DiskModel::NodePtr DiskModel::Parent(const std::string& path,
                                     std::string* name) const {
  std::vector<std::string> parts;
  if (!Parts(path, &parts) || parts.empty()) return nullptr;
  *name = parts.back();
  parts.pop_back();
  return Find(parts);
}

bool DiskModel::Rename(const std::string& from, const std::string& to,
                       bool exchange) {
  std::string old_name;
  std::string new_name;
  const NodePtr old_parent = Parent(from, &old_name);
  const NodePtr new_parent = Parent(to, &new_name);
  if (old_parent == nullptr || new_parent == nullptr) return false;
  const NodePtr moved = old_parent->entries[old_name];
  const NodePtr replaced = new_parent->entries[new_name];
  new_parent->entries[new_name] = moved;
  if (exchange) {
    old_parent->entries[old_name] = replaced;
  } else {
    old_parent->entries.erase(old_name);
  }
  return true;
}

bool DiskModel::Apply(const SystemCall& call) {
  const std::vector<std::string>& a = call.arguments;
  std::string name;
  if (call.name == "write" && a.size() == 3) {
    const NodePtr node = FindPath(a[0]);
    if (node != nullptr) node->data += a[1];  // all writers append
    return false;
  }
  if (call.name == "fsync" || call.name == "fdatasync") {
    const NodePtr node = FindPath(a[0]);
    if (node == nullptr) return false;
    node->flushed = node->data;
    node->flushed_entries = node->entries;
    return true;
  }
  if (call.name == "openat" && a.size() >= 3) {
    const std::string path = Joined(a[0], a[1]);
    const NodePtr parent = Parent(path, &name);
    if (parent == nullptr) return false;
    NodePtr node = FindPath(path);
    if (node == nullptr && absl::StrContains(a[2], "O_CREAT")) {
      node = parent->entries[name] = std::make_shared<Node>();
    }
    if (node != nullptr && absl::StrContains(a[2], "O_TRUNC")) {
      node->data.clear();
    }
    return node != nullptr;
  }
  if (call.name == "ftruncate") {
    if (const NodePtr node = FindPath(a[0])) node->data.clear();
    return false;
  }
  if (call.name == "mkdir") {
    const NodePtr parent = Parent(a[0], &name);
    if (parent == nullptr) return false;
    const NodePtr made = parent->entries[name] = std::make_shared<Node>();
    made->folder = true;
    return true;
  }
  if (call.name == "rename") return Rename(a[0], a[1], false);
  if (call.name == "renameat2") {
    return Rename(Joined(a[0], a[1]), Joined(a[2], a[3]),
                  absl::StrContains(a[4], "RENAME_EXCHANGE"));
  }
  if (absl::StartsWith(call.name, "unlink") || call.name == "rmdir") {
    const std::string path =
        call.name == "unlinkat" ? Joined(a[0], a[1]) : a[0];
    const NodePtr parent = Parent(path, &name);
    if (parent == nullptr) return false;
    parent->entries.erase(name);
    return true;
  }
  return false;
}

void DiskModel::Write(const Node& node, const std::string& path,
                      bool all_names) {
  if (!node.folder) {
    WriteText(path, node.flushed);
    return;
  }
  fs::create_directories(path);
  for (const auto& [name, entry] :
       all_names ? node.entries : node.flushed_entries) {
    Write(*entry, absl::StrCat(path, "/", name), all_names);
  }
}

void DiskModel::Restore(const std::string& folder, bool all_names) const {
  Write(*top_, folder, all_names);
}

}  // namespace capstan
