// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/task_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace capstan::evaluate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kBase[] =
    "output_type: multiple_choice\ndoc_to_text: a\ndoc_to_target: b\n"
    "doc_to_choice: [\"1\", \"2\"]\n";

class TaskGroupTest : public ::testing::Test {
 protected:
  TaskGroupTest() {
    std::filesystem::remove_all(folder_);
    // Without the ending, as the harness keeps what isn't a task itself.
    Write("tasks/quiz/_template", kBase);
    for (const char* name : {"b", "a", "c"}) {
      Write(std::string("tasks/quiz/") + name + ".yaml",
            std::string("include: _template\ntag: letters\ntask: quiz_") +
                name + "\ntask_alias: " + name + "\n");
    }
    Write("tasks/quiz/_letters.yaml",
          "group: quiz_letters\ngroup_alias: letters\ntask: [letters]\n");
    Write("tasks/quiz/_quiz.yaml",
          "group: quiz\ntask:\n  - quiz_letters\n"
          "  - quiz_a\n"
          "aggregate_metric_list: {metric: acc, weight_by_size: false}\n");
    Write("tasks/other/_mixed.yaml",
          "group: mixed\nnum_fewshot: 2\ntask: [quiz_c]\n");
  }
  std::string Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }
  TaskTree Load(const std::string& name) {
    TaskTree tree;
    const absl::Status status = AddTasks(folder_ + "/" + name, &tree);
    EXPECT_TRUE(status.ok()) << status;
    return tree;
  }
  static std::vector<std::string> Names(const TaskTree& tree) {
    std::vector<std::string> names;
    for (const TaskTree::Row& row : tree.rows) {
      names.push_back(std::string(row.depth, '-') +
                      (row.is_group ? tree.groups[row.index].name
                                    : tree.tasks[row.index].name));
    }
    return names;
  }

  const std::string folder_ = std::string(std::getenv("TEST_TMPDIR") != nullptr
                                              ? std::getenv("TEST_TMPDIR")
                                              : "/tmp") +
                              "/task_group_test";
};

TEST_F(TaskGroupTest, GroupsNameTasksTagsAndGroups) {
  const TaskTree tree = Load("tasks/quiz/_quiz.yaml");
  EXPECT_THAT(Names(tree), ElementsAre("quiz", "-quiz_letters", "--quiz_a",
                                       "--quiz_b", "--quiz_c", "-quiz_a"));
  ASSERT_EQ(tree.tasks.size(), 3u);
  EXPECT_EQ(tree.tasks[0].alias, "a");
  ASSERT_EQ(tree.groups.size(), 2u);
  EXPECT_THAT(tree.groups[0].tasks, ElementsAre(0, 1, 2));
  EXPECT_EQ(tree.groups[1].alias, "letters");
}

TEST_F(TaskGroupTest, MembersMayBeElsewhereAndGetTheGroupsKeys) {
  const TaskTree tree = Load("tasks/other/_mixed.yaml");
  EXPECT_THAT(Names(tree), ElementsAre("mixed", "-quiz_c"));
  EXPECT_EQ(tree.tasks[0].num_fewshot, 2);
}

TEST_F(TaskGroupTest, AFolderIsAllThatIsInIt) {
  Write("tasks/quiz/alone.yaml", std::string(kBase) + "task: alone\n");
  EXPECT_THAT(Names(Load("tasks/quiz")),
              ElementsAre("quiz", "-quiz_letters", "--quiz_a", "--quiz_b",
                          "--quiz_c", "-quiz_a", "alone"));
}

// As for want of a permission, which root never lacks.
TEST_F(TaskGroupTest, AFolderThatCannotBeListedIsNamed) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const int next = dup(0);
  close(next);
  // For tasks/, not for what is in it.
  const rlimit few = {static_cast<rlim_t>(next) + 1, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  TaskTree tree;
  const absl::Status status = AddTasks(folder_ + "/tasks", &tree);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr(folder_ + "/tasks/"), HasSubstr("can't be listed")));
}

TEST_F(TaskGroupTest, ANameIsOneTasks) {
  const auto add = [&](const std::string& first, const std::string& second) {
    TaskTree tree;
    EXPECT_TRUE(AddTasks(first, &tree).ok());
    const absl::Status status = AddTasks(second, &tree);
    EXPECT_EQ(tree.tasks.size(), 1u);
    return std::string(status.message());
  };
  const std::string a =
      Write("tasks/same/a.yaml", std::string("task: same\n") + kBase);
  const std::string b = Write(
      "tasks/same/b.yaml", std::string("task: same\nnum_fewshot: 1\n") + kBase);
  EXPECT_THAT(add(a, b), AllOf(HasSubstr(b + ": the task same"), HasSubstr(a)));
  EXPECT_EQ(add(a, folder_ + "/tasks/../tasks/same/a.yaml"), "");
  TaskTree tree;
  EXPECT_THAT(std::string(AddTasks(folder_ + "/tasks/same", &tree).message()),
              AllOf(HasSubstr(a), HasSubstr(b)));
  const std::string plain =
      Write("tasks/g1.yaml", "group: g1\ntask: [quiz_a]\n");
  const std::string other = Write(
      "tasks/g2.yaml", "group: g2\ntask: [{task: quiz_a, doc_to_target: 3}]\n");
  const std::string quoted =
      Write("tasks/g3.yaml",
            "group: g3\ntask: [{task: quiz_a, doc_to_target: \"3\"}]\n");
  EXPECT_THAT(add(plain, other),
              AllOf(HasSubstr("quiz/a.yaml: the task quiz_a"),
                    HasSubstr("doc_to_target")));
  EXPECT_THAT(add(other, quoted), HasSubstr("doc_to_target"));
  EXPECT_EQ(add(other, other), "");
}

TEST_F(TaskGroupTest, GroupsOfTheirOwnTasks) {
  Write("tasks/own.yaml",
        "group: own\ntask:\n  - group: sub\n    task: [quiz_b]\n"
        "  - {task: new, output_type: generate_until, doc_to_text: a, "
        "doc_to_target: b}\n");
  EXPECT_THAT(Names(Load("tasks/own.yaml")),
              ElementsAre("own", "-own::sub", "--quiz_b", "-own::new"));
}

TEST_F(TaskGroupTest, AMembersKeyIsNotTheNextOnes) {
  Write("tasks/keys.yaml",
        "group: keys\nnum_fewshot: 2\n"
        "task: [{task: quiz_a, num_fewshot: 3}, quiz_b]\n");
  const TaskTree tree = Load("tasks/keys.yaml");
  ASSERT_EQ(tree.tasks.size(), 2u);
  EXPECT_EQ(tree.tasks[0].num_fewshot, 3);
  EXPECT_EQ(tree.tasks[1].num_fewshot, 2);
}

TEST_F(TaskGroupTest, SumsUpWhatItsTasksHave) {
  TaskGroup group;
  group.tasks = {0, 1};
  group.metrics = {{"acc", {}, true}, {"em", {"strict"}, true}};
  std::vector<TaskResult> results(2);
  results[0].requests = 1;
  results[0].numbers = {{"acc", 1.0, {}}, {"em,strict", 0.5, {}}};
  results[1].requests = 3;
  results[1].numbers = {{"acc", 0.0, {}}, {"em,loose", 1.0, {}}};
  const std::vector<TaskNumber> numbers = GroupNumbers(group, results);
  ASSERT_EQ(numbers.size(), 2u);
  EXPECT_EQ(numbers[0].name, "acc");
  EXPECT_EQ(numbers[0].value, 0.25);
  EXPECT_EQ(numbers[1].name, "em,strict");
  EXPECT_EQ(numbers[1].value, 0.5);
}

TEST_F(TaskGroupTest, MistakesNameTheFile) {
  const auto error = [&](const std::string& text) {
    TaskTree tree;
    const absl::Status status =
        AddTasks(Write("tasks/wrong.yaml", text), &tree);
    EXPECT_FALSE(status.ok()) << text;
    return std::string(status.message());
  };
  EXPECT_THAT(error("group: g\ntask: [nobody]\n"),
              HasSubstr("wrong.yaml: the group g names \"nobody\""));
  EXPECT_THAT(error("group: g\ntask: [g]\n"), HasSubstr("within itself"));
  EXPECT_THAT(error("group: g\ntask: []\n"), HasSubstr("has no tasks"));
  EXPECT_THAT(error("group: g\ntask: [quiz_a]\naggregate_metric_list: "
                    "[{metric: acc, aggregation: max}]\n"),
              HasSubstr("must be mean"));
  Write("tasks/quiz/bad.yaml", "task: bad\nclass: !function a.B\n");
  EXPECT_THAT(error("group: g\ntask: [bad]\n"), HasSubstr("bad.yaml: class"));
  TaskTree tree;
  EXPECT_FALSE(AddTasks(folder_ + "/tasks/nowhere.yaml", &tree).ok());
}

}  // namespace
}  // namespace capstan::evaluate
