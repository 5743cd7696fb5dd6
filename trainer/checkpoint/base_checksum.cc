// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/base_checksum.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/lib/lora.h"

namespace capstan {
namespace {

constexpr int64_t kPieces = 64;
constexpr int64_t kPieceValues = 1024;
constexpr char kKey[] = "base_crc32c";

}  // namespace

absl::StatusOr<uint32_t> BaseChecksum(
    const std::map<std::string, int64_t>& weights, const ReadWeight& read) {
  std::string sums;
  for (const auto& [name, numel] : weights) {
    const bool all = numel <= kPieces * kPieceValues;
    std::vector<float> values(all ? numel : kPieces * kPieceValues);
    if (all) {
      CAPSTAN_RETURN_IF_ERROR(read(name, 0, numel, values.data()));
    }
    for (int64_t i = 0; i < kPieces && !all; ++i) {
      // The last piece ends the weight.
      const int64_t begin = (numel - kPieceValues) / (kPieces - 1) * i;
      CAPSTAN_RETURN_IF_ERROR(
          read(name, i + 1 < kPieces ? begin : numel - kPieceValues,
               kPieceValues, values.data() + i * kPieceValues));
    }
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(float));
    absl::StrAppendFormat(&sums, "%s %d %08x\n", name, numel, Crc32c(bytes));
  }
  return Crc32c(sums);
}

absl::StatusOr<uint32_t> BaseChecksum(const Model& model, uint64_t seed) {
  const std::vector<ParameterSpec>& specs = model.parameters();
  std::map<std::string, int> index;
  for (size_t i = 0; i < specs.size(); ++i) {
    index[specs[i].name] = static_cast<int>(i);
  }
  std::map<std::string, int64_t> weights;
  for (const ParameterSpec& spec : specs) {
    const absl::optional<AdapterName> adapter = ParseAdapterName(spec.name);
    if (!adapter.has_value()) continue;
    const std::string name = adapter->module + ".weight";
    const auto found = index.find(name);
    if (found == index.end()) {
      return absl::InternalError(absl::StrCat("the adapter's '", spec.name,
                                              "' has no weight '", name, "'"));
    }
    weights[name] = specs[found->second].numel();
  }
  return BaseChecksum(weights, [&](const std::string& name, int64_t begin,
                                   int64_t count, float* out) {
    return model.InitialValue(index.at(name), seed, begin, count, out);
  });
}

std::string CapstanJson(const std::string& config,
                        const absl::optional<uint32_t>& base_checksum) {
  nlohmann::ordered_json json = {{"format", 1}, {"config", config}};
  if (base_checksum.has_value()) {
    json[kKey] = absl::StrFormat("%08x", *base_checksum);
  }
  return json.dump(2) + "\n";
}

absl::optional<uint32_t> ReadBaseChecksum(const std::string& adapter) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(adapter + "/capstan.json");
  if (!text.ok()) return absl::nullopt;
  const nlohmann::json json =
      nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains(kKey) || !json[kKey].is_string()) {
    return absl::nullopt;
  }
  uint32_t checksum = 0;
  if (!absl::SimpleHexAtoi(json[kKey].get<std::string>(), &checksum)) {
    return absl::nullopt;
  }
  return checksum;
}

}  // namespace capstan
