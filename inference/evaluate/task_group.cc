// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/task_group.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "inference/evaluate/task_keys.h"

namespace capstan::evaluate {
namespace {

namespace fs = std::filesystem;
using Overrides = std::map<std::string, TaskKey>;

constexpr int kMostDepth = 8;

// Keys of a group itself; others are for its members.
bool IsGroupKey(const std::string& key) {
  static const auto* const keys = new std::set<std::string>(
      {"group", "group_alias", "task", "aggregate_metric_list", "metadata",
       "include", "tag"});
  return keys->count(key) != 0;
}

bool IsGroup(const Overrides& keys) {
  const auto group = keys.find("group");
  const auto task = keys.find("task");
  return group != keys.end() && group->second.node.IsScalar() &&
         keys.count("class") == 0 &&
         (task == keys.end() || !task->second.node.IsScalar());
}

// Adds the *.yaml in a folder and in those below it, by name. An error names
// what can't be listed; then those found so far are added.
absl::Status AddTaskFiles(const std::string& folder,
                          fs::directory_options options,
                          std::vector<std::string>* files) {
  // The harness has 20,000. With more, "/" was meant to be something else.
  constexpr int kMostEntries = 200000;
  std::error_code error;
  std::string at = folder;
  int entries = 0;
  fs::recursive_directory_iterator it(folder, options, error);
  for (; !error && it != fs::recursive_directory_iterator();
       it.increment(error)) {
    if (++entries > kMostEntries) break;
    at = it->path().string();
    if (it->path().extension() == ".yaml") files->push_back(at);
  }
  std::sort(files->begin(), files->end());
  if (entries > kMostEntries) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " has more than ", kMostEntries,
                     " files and folders: name the one that has the tasks"));
  }
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(),
                             absl::StrCat(at, " can't be listed"));
}

// Files by the names of what is in them.
class TaskIndex {
 public:
  void AddBelow(const std::string& folder) {
    std::vector<std::string> files;
    // A member that isn't found is told.
    AddTaskFiles(folder, fs::directory_options::skip_permission_denied, &files)
        .IgnoreError();
    for (const std::string& file : files) {
      if (!seen_.insert(file).second) continue;
      // What can't be read may be no task at all; who names it is told.
      absl::StatusOr<TaskKeys> keys = TaskKeys::Read(file);
      if (keys.ok()) Add(file, &*keys);
    }
  }
  // A member's file; null if there is none.
  const std::string* Find(const std::string& name) const {
    const auto found = files_.find(name);
    return found == files_.end() ? nullptr : &found->second;
  }
  // The names of the tasks that have the tag.
  const std::set<std::string>* Tagged(const std::string& tag) const {
    const auto found = tags_.find(tag);
    return found == tags_.end() ? nullptr : &found->second;
  }

 private:
  void Add(const std::string& file, TaskKeys* keys) {
    const bool group = IsGroup(keys->all());
    if (!keys->Has(group ? "group" : "task")) return;
    const std::string name =
        keys->Get<std::string>(group ? "group" : "task", "");
    if (!files_.emplace(name, file).second || group || !keys->Has("tag")) {
      return;
    }
    for (const std::string& tag : keys->Texts("tag", keys->At("tag").node)) {
      tags_[tag].insert(name);
    }
  }

  std::set<std::string> seen_;
  std::map<std::string, std::string> files_;
  std::map<std::string, std::set<std::string>> tags_;
};

// Results go by names: all tasks of one name must be one task.
absl::Status CheckSame(const Task& task, const Task& added) {
  std::string what;
  if (task.path != added.path) {
    what = absl::StrCat("there is one of that name in ", added.path, ", too");
  } else if (task.keys != added.keys) {
    const auto [a, b] = std::mismatch(task.keys.begin(), task.keys.end(),
                                      added.keys.begin(), added.keys.end());
    const bool of_a =
        a != task.keys.end() && (b == added.keys.end() || a->first <= b->first);
    what = absl::StrCat("it is asked for with one ", (of_a ? a : b)->first,
                        " and, by a group, with another");
  } else {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(task.path, ": the task ", task.name, " isn't alone: ", what,
                   "; give one of the two another name (task: ..)"));
}

class TreeBuilder {
 public:
  TreeBuilder(const std::string& folder, TaskTree* tree)
      : folder_(fs::absolute(folder).lexically_normal().string()), tree_(tree) {
    for (const Task& task : tree->tasks)
      added_.emplace(task.name, added_.size());
  }

  absl::Status AddFile(const std::string& path, int depth,
                       const Overrides& overrides) {
    CAPSTAN_ASSIGN_OR_RETURN(TaskKeys keys, TaskKeys::Read(path));
    return AddKeys(std::move(keys), depth, overrides);
  }

  // All of the folder: its groups that no other names, and what is in none.
  absl::Status AddFolder() {
    std::vector<std::string> groups, tasks, files;
    std::set<std::string> members;
    CAPSTAN_RETURN_IF_ERROR(
        AddTaskFiles(folder_, fs::directory_options::none, &files));
    for (const std::string& file : files) {
      CAPSTAN_ASSIGN_OR_RETURN(TaskKeys keys, TaskKeys::Read(file));
      if (IsGroup(keys.all())) {
        groups.push_back(file);
        for (const std::string& name : MemberNames(&keys)) members.insert(name);
      } else if (keys.Has("task") || keys.Has("class")) {
        tasks.push_back(file);
      }
    }
    for (const std::string& file : groups) {
      CAPSTAN_ASSIGN_OR_RETURN(TaskKeys keys, TaskKeys::Read(file));
      if (members.count(keys.Get<std::string>("group", "")) == 0) {
        CAPSTAN_RETURN_IF_ERROR(AddKeys(std::move(keys), 0, {}));
      }
    }
    for (const std::string& file : tasks) {
      CAPSTAN_ASSIGN_OR_RETURN(TaskKeys keys, TaskKeys::Read(file));
      const auto added = added_.find(keys.Get<std::string>("task", ""));
      if (added == added_.end() || tree_->tasks[added->second].path != file) {
        CAPSTAN_RETURN_IF_ERROR(AddKeys(std::move(keys), 0, {}));
      }
    }
    if (!tree_->rows.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(folder_, ": has no task's file (*.yaml)"));
  }

 private:
  std::vector<std::string> MemberNames(TaskKeys* keys) {
    std::vector<std::string> names;
    if (!keys->Has("task")) return names;
    for (const YAML::Node& member : keys->At("task").node) {
      const YAML::Node name = !member.IsMap()   ? member
                              : member["group"] ? member["group"]
                                                : member["task"];
      names.push_back(keys->As<std::string>("task", name, ""));
    }
    return names;
  }

  absl::Status AddKeys(TaskKeys keys, int depth, const Overrides& overrides) {
    if (depth > kMostDepth) {
      return absl::InvalidArgumentError(absl::StrCat(
          keys.path(), ": is within ", depth, " groups, or within itself"));
    }
    if (IsGroup(keys.all())) return AddGroup(std::move(keys), depth, overrides);
    for (const auto& [key, value] : overrides) keys.Set(key, value);
    CAPSTAN_ASSIGN_OR_RETURN(Task task, MakeTask(std::move(keys)));
    const auto added = added_.emplace(task.name, tree_->tasks.size());
    tree_->rows.push_back({depth, /*is_group=*/false, added.first->second});
    if (!added.second) {
      return CheckSame(task, tree_->tasks[added.first->second]);
    }
    tree_->tasks.push_back(std::move(task));
    return absl::OkStatus();
  }

  absl::Status AddGroup(TaskKeys keys, int depth, const Overrides& overrides) {
    TaskGroup group;
    group.name = keys.GetName("group", "");
    group.alias = keys.Get<std::string>("group_alias", "");
    group.metrics = Metrics(&keys);
    CAPSTAN_RETURN_IF_ERROR(keys.status());
    Overrides below;
    for (const auto& [key, value] : keys.all()) {
      if (!IsGroupKey(key)) below[key] = value;
    }
    for (const auto& [key, value] : overrides) below[key] = value;
    const size_t index = tree_->groups.size();
    const size_t first_row = tree_->rows.size();
    tree_->groups.push_back(group);
    tree_->rows.push_back({depth, /*is_group=*/true, index});
    if (keys.Has("task")) {
      const TaskKey members = keys.At("task");
      for (const YAML::Node& member : members.node) {
        CAPSTAN_RETURN_IF_ERROR(AddMember({member, members.folder}, group.name,
                                          keys, depth + 1, below));
      }
    }
    std::set<size_t> tasks;
    for (size_t i = first_row; i < tree_->rows.size(); ++i) {
      const TaskTree::Row& row = tree_->rows[i];
      if (row.is_group || !tasks.insert(row.index).second) continue;
      tree_->groups[index].tasks.push_back(row.index);
    }
    if (!tasks.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(keys.path(), ": the group ", group.name, " has no tasks"));
  }

  // A name, or a map with more keys for what it names or defines itself.
  absl::Status AddMember(const TaskKey& member, const std::string& group,
                         TaskKeys& keys, int depth,
                         const Overrides& overrides) {
    Overrides merged = overrides;
    std::string name;
    if (!member.node.IsMap()) {
      name = keys.As<std::string>("task", member.node, "");
    } else {
      const bool is_group = static_cast<bool>(member.node["group"]);
      name = keys.As<std::string>("task",
                                  member.node[is_group ? "group" : "task"], "");
      for (const auto& pair : member.node) {
        const std::string key = pair.first.as<std::string>();
        if (key != (is_group ? "group" : "task")) {
          merged[key] = {pair.second, member.folder};
        }
      }
    }
    CAPSTAN_RETURN_IF_ERROR(keys.status());
    if (const std::string* file = Find(name); file != nullptr) {
      return AddFile(*file, depth, merged);
    }
    if (const std::set<std::string>* tagged = index_.Tagged(name);
        tagged != nullptr) {
      const std::set<std::string> names = *tagged;
      for (const std::string& task : names) {
        CAPSTAN_RETURN_IF_ERROR(AddFile(*index_.Find(task), depth, merged));
      }
      return absl::OkStatus();
    }
    if (member.node.IsMap() && member.node.size() > 1) {
      return AddInline(member, group, keys.path(), depth, overrides);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        keys.path(), ": the group ", group, " names \"", name,
        "\", which is no task, group or tag of a file below ", top_));
  }

  // What a group's file defines on the spot; its name follows the group's.
  absl::Status AddInline(const TaskKey& member, const std::string& group,
                         const std::string& path, int depth,
                         const Overrides& overrides) {
    Overrides own;
    for (const auto& pair : member.node) {
      own[pair.first.as<std::string>()] = {pair.second, member.folder};
    }
    const std::string key = own.count("group") != 0 ? "group" : "task";
    YAML::Node& name = own[key].node;
    name.reset(YAML::Node(absl::StrCat(group, "::", name.as<std::string>())));
    CAPSTAN_ASSIGN_OR_RETURN(TaskKeys keys, TaskKeys::Of(path, std::move(own)));
    return AddKeys(std::move(keys), depth, overrides);
  }

  // Looks in ever larger folders.
  const std::string* Find(const std::string& name) {
    if (top_.empty()) Widen(folder_);
    while (true) {
      const std::string* file = index_.Find(name);
      if (file != nullptr || index_.Tagged(name) != nullptr) return file;
      const fs::path above = fs::path(top_).parent_path();
      if (!absl::StrContains(above.string() + "/", "/tasks/") ||
          above == fs::path(top_)) {
        return nullptr;
      }
      Widen(above.string());
    }
  }
  void Widen(const std::string& folder) {
    top_ = folder;
    index_.AddBelow(folder);
  }

  std::vector<GroupMetric> Metrics(TaskKeys* keys) {
    std::vector<GroupMetric> metrics;
    if (!keys->Has("aggregate_metric_list")) return metrics;
    const YAML::Node list = keys->At("aggregate_metric_list").node;
    if (list.IsMap()) return {Metric(list, keys)};
    for (const YAML::Node& node : list) metrics.push_back(Metric(node, keys));
    return metrics;
  }

  GroupMetric Metric(const YAML::Node& node, TaskKeys* keys) {
    constexpr char kKey[] = "aggregate_metric_list";
    GroupMetric metric;
    metric.name = keys->As<std::string>(kKey, node["metric"], "");
    metric.weight_by_size = keys->As<bool>(
        "aggregate_metric_list.weight_by_size", node["weight_by_size"], true);
    if (node["filter_list"] && !node["filter_list"].IsNull()) {
      metric.filters = keys->Texts(kKey, node["filter_list"]);
    }
    const std::string aggregation =
        keys->As<std::string>(kKey, node["aggregation"], "mean");
    if (aggregation != "mean") {
      keys->Fail(kKey, absl::StrCat("sums up ", metric.name, " by \"",
                                    aggregation, "\", must be mean"));
    }
    return metric;
  }

  const std::string folder_;
  std::string top_;  // of what the index has; empty: nothing yet
  TaskIndex index_;
  TaskTree* const tree_;
  std::map<std::string, size_t> added_;  // tasks by name
};

}  // namespace

absl::Status AddTasks(const std::string& path, TaskTree* tree) {
  try {
    if (IsFolder(path)) return TreeBuilder(path, tree).AddFolder();
    const fs::path file = fs::absolute(path).lexically_normal();
    return TreeBuilder(file.parent_path().string(), tree)
        .AddFile(file.string(), 0, {});
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": ", error.msg));
  }
}

std::vector<TaskNumber> GroupNumbers(const TaskGroup& group,
                                     const std::vector<TaskResult>& results) {
  std::vector<TaskNumber> numbers;
  for (const GroupMetric& metric : group.metrics) {
    // By filter; those of one name are summed up.
    std::map<std::string, std::vector<Share>> shares;
    for (const size_t task : group.tasks) {
      for (const TaskNumber& number : results[task].numbers) {
        const size_t comma = number.name.find(',');
        const std::string filter =
            comma == number.name.npos ? "none" : number.name.substr(comma + 1);
        const bool wanted =
            metric.filters.empty() ||
            std::find(metric.filters.begin(), metric.filters.end(), filter) !=
                metric.filters.end();
        if (number.name.substr(0, comma) != metric.name || !wanted) continue;
        shares[filter].push_back(
            {number.value, number.standard_error, results[task].requests});
      }
    }
    for (const auto& [filter, of_filter] : shares) {
      TaskNumber number = AggregateShares(of_filter, metric.weight_by_size);
      number.name = filter == "none" ? metric.name
                                     : absl::StrCat(metric.name, ",", filter);
      numbers.push_back(std::move(number));
    }
  }
  return numbers;
}

}  // namespace capstan::evaluate
