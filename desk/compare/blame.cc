// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/blame.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kGradient[] = "gradient";
constexpr char kWeight[] = "weight";

// The lines of digests.jsonl by step; of a step that was repeated, the last. A
// run that went on from a step has another line of it, without gradients: those
// are the ones that made it.
absl::StatusOr<std::map<int64_t, Json>> ReadDigests(const std::string& folder) {
  const std::string path = folder + "/digests.jsonl";
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  std::map<int64_t, Json> lines;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") ||
        !json["step"].is_number_integer()) {
      // The run writes it, or was killed while it did.
      if (line.data() + line.size() == text.data() + text.size()) break;
      return absl::DataLossError(
          absl::StrCat(path, ": line ", number, " is damaged"));
    }
    Json& known = lines[json["step"].get<int64_t>()];
    if (!json.contains(kGradient) && known.contains(kGradient)) {
      json[kGradient] = std::move(known[kGradient]);
    }
    known = std::move(json);
  }
  return lines;
}

std::vector<std::string> KindsInOrder(const Json& line) {
  std::vector<std::string> kinds = {kGradient};
  for (const auto& [kind, digests] : line.items()) {
    if (digests.is_object() && kind != kGradient && kind != kWeight) {
      kinds.push_back(kind);
    }
  }
  kinds.push_back(kWeight);
  return kinds;
}

absl::optional<FirstDifference> DifferenceIn(const Json& line,
                                             const Json& reference) {
  for (const std::string& kind : KindsInOrder(line)) {
    // A run that went on from this step hasn't computed them.
    if (kind == kGradient &&
        (!line.contains(kind) || !reference.contains(kind))) {
      continue;
    }
    const Json& mine = line.value(kind, Json::object());
    const Json& theirs = reference.value(kind, Json::object());
    FirstDifference found;
    for (const auto& [parameter, digest] : mine.items()) {
      if (theirs.contains(parameter) && theirs[parameter] == digest) continue;
      ++found.tensors;
      if (found.parameter.empty() || kind == kGradient) {
        found.parameter = parameter;
      }
    }
    if (found.tensors == 0) continue;
    found.kind = kind;
    return found;
  }
  return absl::nullopt;
}

struct Kept {
  std::string dtype;
  std::string bytes;
};

int64_t ElementSize(const std::string& dtype) {
  if (dtype == "Float") return sizeof(float);
  return dtype == "BFloat16" || dtype == "Half" ? sizeof(uint16_t) : 1;
}

struct Piece {
  int64_t begin = 0;  // its first element in the tensor
  std::string dtype;
  std::string path;
};

// The files STEP.KIND.PARAMETER.BEGIN.DTYPE, in the order of their elements.
std::vector<Piece> FindPieces(const std::string& folder,
                              const FirstDifference& where) {
  const std::string prefix =
      absl::StrCat(where.step, ".", where.kind, ".", where.parameter, ".");
  std::vector<Piece> pieces;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, prefix)) continue;
    const std::vector<std::string> parts = absl::StrSplit(rest, '.');
    int64_t begin = 0;
    // Another parameter's name may begin with this one's.
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &begin)) continue;
    pieces.push_back({begin, parts[1], entry.path().string()});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.begin, a.dtype) < std::tie(b.begin, b.dtype);
  });
  return pieces;
}

// What the ranks wrote, put together.
absl::StatusOr<Kept> ReadKept(const std::string& folder,
                              const FirstDifference& where) {
  const std::vector<Piece> pieces = FindPieces(folder + "/digests", where);
  if (pieces.empty()) {
    return absl::NotFoundError(absl::StrCat(folder, "/digests has no ",
                                            where.kind, " of ", where.parameter,
                                            " in step ", where.step));
  }
  Kept kept;
  kept.dtype = pieces[0].dtype;
  for (const Piece& piece : pieces) {
    const int64_t end =
        static_cast<int64_t>(kept.bytes.size()) / ElementSize(kept.dtype);
    if (piece.begin != end || piece.dtype != kept.dtype) {
      return absl::DataLossError(absl::StrCat(
          piece.path, " doesn't follow the pieces before it, ", end,
          " elements of ", kept.dtype,
          ": one is missing, or another run's are among them; remove ", folder,
          "/digests and run again"));
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::string bytes,
                             ReadWholeFile(piece.path));
    kept.bytes += bytes;
  }
  return kept;
}

// Numbers in the order of the values that these bits mean.
template <typename Bits>
int64_t Ordered(Bits bits) {
  const auto top = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  return (bits & top) != 0 ? -static_cast<int64_t>(bits & ~top)
                           : static_cast<int64_t>(bits);
}

template <typename T, typename Bits>
ElementDifference Difference(Bits mine, Bits theirs) {
  T a, b;
  std::memcpy(static_cast<void*>(&a), &mine, sizeof(a));
  std::memcpy(static_cast<void*>(&b), &theirs, sizeof(b));
  ElementDifference element;
  element.value = static_cast<double>(a);
  element.reference = static_cast<double>(b);
  if constexpr (std::is_integral_v<T>) {
    element.ulps = std::abs(static_cast<int64_t>(a) - static_cast<int64_t>(b));
  } else if (std::isnan(element.value) || std::isnan(element.reference)) {
    element.ulps = -1;
  } else {
    element.ulps = std::abs(Ordered(mine) - Ordered(theirs));
  }
  return element;
}

template <typename T, typename Bits>
void CompareElements(const Kept& mine, const Kept& theirs,
                     TensorDifference* found) {
  static_assert(sizeof(T) == sizeof(Bits));
  found->numel = static_cast<int64_t>(mine.bytes.size() / sizeof(Bits));
  for (int64_t i = 0; i < found->numel; ++i) {
    Bits a, b;
    std::memcpy(&a, mine.bytes.data() + i * sizeof(Bits), sizeof(a));
    std::memcpy(&b, theirs.bytes.data() + i * sizeof(Bits), sizeof(b));
    if (a == b) continue;
    ElementDifference element = Difference<T, Bits>(a, b);
    element.index = i;
    ++found->different;
    found->most_ulps = std::max(found->most_ulps, element.ulps);
    if (static_cast<int>(found->first.size()) < TensorDifference::kListed) {
      found->first.push_back(element);
    }
  }
}

// Runs of one model have the same keys.
absl::Status CheckParameters(const std::string& folder, const Json& line,
                             const std::string& reference, const Json& other) {
  const Json& mine = line.value(kWeight, Json::object());
  const Json& theirs = other.value(kWeight, Json::object());
  const auto extra = [](const Json& of, const Json& beside) {
    for (const auto& [parameter, digest] : of.items()) {
      if (!beside.contains(parameter)) return parameter;
    }
    return std::string();
  };
  const std::string here = extra(mine, theirs), there = extra(theirs, mine);
  if (here.empty() && there.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      here.empty() ? reference : folder, " trains '",
      here.empty() ? there : here, "', but ", here.empty() ? folder : reference,
      " doesn't: compare runs of one model"));
}

std::string PartsText(const std::string& run, const std::string& reference,
                      const FirstDifference& where) {
  return absl::StrCat(run, " parts from ", reference, " ",
                      where.step == 0 ? "before the first step"
                                      : absl::StrCat("in step ", where.step),
                      ": the ", where.kind, " of '", where.parameter, "'");
}

std::string OthersText(const FirstDifference& where) {
  return where.tensors == 1
             ? ", and no other tensor of its kind does"
             : absl::StrCat("; ", where.tensors, " tensors of its kind do");
}

std::string UlpsText(int64_t ulps) {
  if (ulps < 0) return "one isn't a number";
  return absl::StrCat(ulps, ulps == 1 ? " ulp" : " ulps");
}

}  // namespace

absl::StatusOr<absl::optional<FirstDifference>> FindFirstDifference(
    const std::string& folder, const std::string& reference) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto mine, ReadDigests(folder));
  CAPSTAN_ASSIGN_OR_RETURN(const auto theirs, ReadDigests(reference));
  int64_t common = 0;
  for (const auto& [step, line] : mine) {
    const auto other = theirs.find(step);
    if (other == theirs.end()) continue;
    if (++common == 1) {
      CAPSTAN_RETURN_IF_ERROR(
          CheckParameters(folder, line, reference, other->second));
    }
    absl::optional<FirstDifference> found = DifferenceIn(line, other->second);
    if (!found.has_value()) continue;
    found->step = step;
    return found;
  }
  if (common == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " and ", reference,
                     " have no step in common in digests.jsonl"));
  }
  return absl::optional<FirstDifference>();
}

absl::StatusOr<TensorDifference> CompareKept(const std::string& folder,
                                             const std::string& reference,
                                             const FirstDifference& where) {
  CAPSTAN_ASSIGN_OR_RETURN(const Kept mine, ReadKept(folder, where));
  CAPSTAN_ASSIGN_OR_RETURN(const Kept theirs, ReadKept(reference, where));
  if (mine.dtype != theirs.dtype || mine.bytes.size() != theirs.bytes.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the ", where.kind, " of ", where.parameter, " is ", mine.bytes.size(),
        " bytes of ", mine.dtype, " in ", folder, ", but ", theirs.bytes.size(),
        " of ", theirs.dtype, " in ", reference));
  }
  TensorDifference found;
  found.dtype = mine.dtype;
  if (mine.dtype == "Float") {
    CompareElements<float, uint32_t>(mine, theirs, &found);
  } else if (mine.dtype == "BFloat16") {
    CompareElements<c10::BFloat16, uint16_t>(mine, theirs, &found);
  } else if (mine.dtype == "Half") {
    CompareElements<c10::Half, uint16_t>(mine, theirs, &found);
  } else {
    CompareElements<uint8_t, uint8_t>(mine, theirs, &found);
  }
  return found;
}

std::string BlameText(const std::string& run, const std::string& reference,
                      const FirstDifference& where) {
  return absl::StrCat(
      PartsText(run, reference, where), " differs", OthersText(where),
      "\nTo see its elements, train both once more, in other folders, with "
      "--set train.digests.write=true --set train.digests.keep_step=",
      where.step, " --set 'train.digests.keep=\"", where.kind, "/",
      where.parameter, "\"'\n");
}

std::string BlameText(const std::string& run, const std::string& reference,
                      const FirstDifference& where,
                      const TensorDifference& tensor) {
  std::string text = PartsText(run, reference, where);
  if (tensor.first.empty()) {
    return absl::StrCat(text,
                        " differs, but didn't when they ran again: something "
                        "differs from run to run\n");
  }
  const ElementDifference& first = tensor.first.front();
  absl::StrAppendFormat(
      &text,
      " differs at element %d, %.9g instead of %.9g (%s); %d of its %d "
      "elements differ, by at most %s%s\n",
      first.index, first.value, first.reference, UlpsText(first.ulps),
      tensor.different, tensor.numel, UlpsText(tensor.most_ulps),
      OthersText(where));
  absl::StrAppendFormat(&text, "  %12s  %16s  %16s  %8s\n", "element", "value",
                        "reference", "ulps");
  for (const ElementDifference& element : tensor.first) {
    absl::StrAppendFormat(&text, "  %12d  %16.9g  %16.9g  %8d\n", element.index,
                          element.value, element.reference, element.ulps);
  }
  return text;
}

}  // namespace capstan
