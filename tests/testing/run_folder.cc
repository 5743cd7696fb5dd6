// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/run_folder.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLengthBytes = 8;

uint64_t HeaderBytes(const std::string& bytes) {
  uint64_t length = 0;
  if (bytes.size() >= kLengthBytes) {
    std::memcpy(&length, bytes.data(), kLengthBytes);
  }
  return length;
}

}  // namespace

std::string Runfile(const std::string& path) {
  const char* root = getenv("TEST_SRCDIR");
  const std::string found =
      absl::StrCat(root == nullptr ? "" : root, "/capstan/", path);
  EXPECT_TRUE(fs::exists(found)) << found;
  return found;
}

std::string NewTestFolder(const std::string& name) {
  const char* root = getenv("TEST_TMPDIR");
  std::string path =
      absl::StrCat(root == nullptr ? "/tmp" : root, "/", name, "_XXXXXX");
  EXPECT_NE(mkdtemp(&path[0]), nullptr) << path;
  return path;
}

std::string CopyFolder(const std::string& from, const std::string& name) {
  const std::string to = NewTestFolder(name);
  for (const auto& entry : fs::directory_iterator(from)) {
    if (!entry.is_regular_file()) continue;
    // The build's files are read-only.
    WriteText(absl::StrCat(to, "/", entry.path().filename().string()),
              ReadText(entry.path().string()));
  }
  return to;
}

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << "can't read " << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string WriteText(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  EXPECT_TRUE(out.good()) << "can't write " << path;
  return path;
}

nlohmann::json ReadJson(const std::string& path) {
  nlohmann::json json = nlohmann::json::parse(ReadText(path), nullptr,
                                              /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << path << " is not JSON";
  return json;
}

int CountLines(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return static_cast<int>(std::count(std::istreambuf_iterator<char>(in),
                                     std::istreambuf_iterator<char>(), '\n'));
}

std::map<std::string, std::string> Snapshot(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = entry.path().lexically_relative(folder).string();
    if (entry.is_symlink()) {
      files[path] = fs::read_symlink(entry.path()).string();
    } else if (entry.is_directory()) {
      files[path] = "folder";
    } else if (path == ".lock") {
      files[path] = "";  // says who has it, and since when
    } else {
      files[path] = ReadText(entry.path().string());
    }
  }
  return files;
}

std::vector<double> Metrics::Values(const std::string& key) const {
  std::vector<double> values;
  for (const nlohmann::json& line : steps) {
    const auto it = line.find(key);
    const bool is_number = it != line.end() && it->is_number();
    EXPECT_TRUE(is_number) << "no number \"" << key << "\" in " << line;
    values.push_back(is_number ? it->get<double>() : 0.0);
  }
  return values;
}

Metrics ReadMetrics(const std::string& output_dir) {
  Metrics metrics;
  std::istringstream lines(ReadText(output_dir + "/metrics.jsonl"));
  std::string line;
  while (std::getline(lines, line)) {
    nlohmann::json json =
        nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << "not a JSON object: " << line;
    if (!json.is_object()) continue;
    (json.contains("eval_loss") ? metrics.evals
     : json.contains("loss")    ? metrics.steps
                                : metrics.others)
        .push_back(std::move(json));
  }
  return metrics;
}

std::string LatestRun(const std::string& runs) {
  std::string name = ReadText(runs + "/latest");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return runs + "/" + name;
}

std::vector<int64_t> CheckpointSteps(const std::string& output_dir) {
  std::vector<int64_t> steps;
  const fs::path root = fs::path(output_dir) / "checkpoints";
  if (!fs::exists(root)) return steps;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    if (absl::StartsWith(name, "step-") &&
        absl::SimpleAtoi(name.substr(5), &step) &&
        fs::exists(entry.path() / "manifest.json")) {
      steps.push_back(step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

int64_t NewestStep(const std::string& output_dir) {
  const std::vector<int64_t> steps = CheckpointSteps(output_dir);
  return steps.empty() ? 0 : steps.back();
}

nlohmann::json SafetensorsHeader(const std::string& path) {
  const std::string bytes = ReadText(path);
  nlohmann::json header = nlohmann::json::parse(
      bytes.substr(std::min(bytes.size(), kLengthBytes), HeaderBytes(bytes)),
      nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(header.is_object()) << path;
  return header;
}

void ReplaceSafetensorsHeader(const std::string& path,
                              const std::string& header) {
  const std::string bytes = ReadText(path);
  const uint64_t length = header.size();
  std::string changed(reinterpret_cast<const char*>(&length), kLengthBytes);
  absl::StrAppend(&changed, header,
                  bytes.substr(kLengthBytes + HeaderBytes(bytes)));
  WriteText(path, changed);
}

}  // namespace capstan
