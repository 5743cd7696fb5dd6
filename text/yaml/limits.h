// SPDX-License-Identifier: Apache-2.0
//
// YAML from outside: an alias may stand for what it is in, or for many others
// that do the same, so that a short file has more nodes than there is memory.
#ifndef CAPSTAN_TEXT_YAML_LIMITS_H_
#define CAPSTAN_TEXT_YAML_LIMITS_H_

#include <yaml-cpp/yaml.h>

#include <cstdint>

namespace capstan {

constexpr int kMostYamlDepth = 64;
constexpr int64_t kMostYamlNodes = 100000;

// Whether `node` has at most *nodes nodes, each alias counted as what it stands
// for, and takes them from *nodes. To be asked before anything else walks
// through it.
inline bool YamlFits(const YAML::Node& node, int depth, int64_t* nodes) {
  if (depth > kMostYamlDepth || --*nodes < 0) return false;
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) {
      if (!YamlFits(item, depth + 1, nodes)) return false;
    }
  } else if (node.IsMap()) {
    for (const auto& pair : node) {
      if (!YamlFits(pair.first, depth + 1, nodes) ||
          !YamlFits(pair.second, depth + 1, nodes)) {
        return false;
      }
    }
  }
  return true;
}

// The same of a whole file.
inline bool YamlFits(const YAML::Node& root) {
  int64_t nodes = kMostYamlNodes;
  return YamlFits(root, 0, &nodes);
}

}  // namespace capstan

#endif  // CAPSTAN_TEXT_YAML_LIMITS_H_
