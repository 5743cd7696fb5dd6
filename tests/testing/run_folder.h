// SPDX-License-Identifier: Apache-2.0
//
// Files of tests: what they read from the build, and what a run has written.
// Whatever can't be read fails the test that asks for it.
#ifndef CAPSTAN_TESTS_TESTING_RUN_FOLDER_H_
#define CAPSTAN_TESTS_TESTING_RUN_FOLDER_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace capstan {

// A file or folder of this repository among the test's data.
std::string Runfile(const std::string& path);

// A new, empty folder under the test's own temporary one.
std::string NewTestFolder(const std::string& name);

// A copy of a folder of runfiles that may be changed.
std::string CopyFolder(const std::string& from, const std::string& name);

std::string ReadText(const std::string& path);
// Returns `path`.
std::string WriteText(const std::string& path, const std::string& text);
nlohmann::json ReadJson(const std::string& path);
// Whole lines of a file that may be growing, or not be there yet.
int CountLines(const std::string& path);

// Bytes of each file and target of each link below a folder, by path.
std::map<std::string, std::string> Snapshot(const std::string& folder);

// metrics.jsonl of a run's folder.
struct Metrics {
  std::vector<nlohmann::json> steps;   // lines with "loss"
  std::vector<nlohmann::json> evals;   // lines with "eval_loss"
  std::vector<nlohmann::json> others;  // what is measured besides

  std::vector<double> Values(const std::string& key) const;
  std::vector<double> losses() const { return Values("loss"); }
  std::vector<double> grad_norms() const { return Values("grad_norm"); }
};
Metrics ReadMetrics(const std::string& output_dir);

// The newest run of runs/NAME, as its file "latest" says.
std::string LatestRun(const std::string& runs);

// Steps of the whole checkpoints in a run's folder, ascending.
std::vector<int64_t> CheckpointSteps(const std::string& output_dir);
// The last of these, or 0; of a run that may be under way.
int64_t NewestStep(const std::string& output_dir);

// A safetensors file as its header says: shape and dtype by name.
nlohmann::json SafetensorsHeader(const std::string& path);
// `path` with another header, which may be nonsense, before the same data.
void ReplaceSafetensorsHeader(const std::string& path,
                              const std::string& header);

}  // namespace capstan

#endif  // CAPSTAN_TESTS_TESTING_RUN_FOLDER_H_
