// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/nccl/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace capstan::standin {
namespace {

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// A 16-bit float type, and the type of its sums.
struct BFloat16 {
  uint16_t bits;
  static float Load(BFloat16 x) {
    return FromBits(static_cast<uint32_t>(x.bits) << 16);
  }
  static BFloat16 Store(float value) {
    const uint32_t bits = BitsOf(value);
    if (std::isnan(value)) return {0x7FC0};
    const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    return {static_cast<uint16_t>(rounded >> 16)};
  }
};

struct Half {
  uint16_t bits;
  static float Load(Half x) {
    const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
    const uint32_t exponent = (x.bits >> 10) & 31;
    const uint32_t mantissa = x.bits & 0x3FF;
    if (exponent == 31) {
      return FromBits(sign | 0x7F800000 | mantissa << 13);
    }
    if (exponent > 0) {
      return FromBits(sign | (exponent + 112) << 23 | mantissa << 13);
    }
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -value : value;
  }
  static Half Store(float value) {
    const uint16_t sign = static_cast<uint16_t>(std::signbit(value) << 15);
    if (std::isnan(value)) return {static_cast<uint16_t>(sign | 0x7E00)};
    const float magnitude = std::fabs(value);
    // 65520 is halfway between the largest half and the next power of two.
    if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7C00)};
    if (magnitude == 0.0f) return {sign};
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    // The unit in the last place; nearbyint rounds ties to even.
    const int unit = std::max(exponent - 11, -24);
    const auto units =
        static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
    // 1024 units are the implicit bit, which carries into the exponent.
    const uint32_t bits = units + (static_cast<uint32_t>(unit + 24) << 10);
    return {static_cast<uint16_t>(sign | bits)};
  }
};

template <typename T>
struct Wide {
  // Signed sums wrap, as NCCL's do.
  using Type = T;
  static Type Load(T x) { return x; }
  static T Store(Type x) { return x; }
};

template <>
struct Wide<BFloat16> : BFloat16 {
  using Type = float;
};

template <>
struct Wide<Half> : Half {
  using Type = float;
};

template <typename Type>
Type Add(Type a, Type b) {
  if constexpr (std::is_integral_v<Type>) {
    using Unsigned = std::make_unsigned_t<Type>;
    return static_cast<Type>(static_cast<Unsigned>(static_cast<Unsigned>(a) +
                                                   static_cast<Unsigned>(b)));
  } else {
    return a + b;
  }
}

template <typename Type>
Type Multiply(Type a, Type b) {
  if constexpr (std::is_integral_v<Type>) {
    return static_cast<Type>(static_cast<uint64_t>(a) *
                             static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

template <typename Type>
Type Combine(ncclRedOp_t op, Type a, Type b) {
  switch (op) {
    case ncclProd:
      return Multiply(a, b);
    // NaN wins, whichever side it is on.
    case ncclMax:
      return a > b || a != a ? a : b;
    case ncclMin:
      return a < b || a != a ? a : b;
    default:
      return Add(a, b);
  }
}

template <typename T>
void ReduceAs(const Reduction& reduction, const void* const* sources, int count,
              void* out, int64_t size) {
  using Type = typename Wide<T>::Type;
  const auto load = [&](int source, int64_t i) {
    T element;
    std::memcpy(&element, static_cast<const T*>(sources[source]) + i,
                sizeof(element));
    Type value = Wide<T>::Load(element);
    if (reduction.scaled) {
      value = Multiply(value, static_cast<Type>(reduction.scale));
    }
    return value;
  };
  for (int64_t i = 0; i < size; ++i) {
    Type value = load(0, i);
    for (int s = 1; s < count; ++s) {
      value = Combine(reduction.op, value, load(s, i));
    }
    if (reduction.op == ncclAvg) value /= static_cast<Type>(count);
    const T element = Wide<T>::Store(value);
    std::memcpy(static_cast<T*>(out) + i, &element, sizeof(element));
  }
}

template <typename T>
double ScalarAs(const void* p) {
  T element;
  std::memcpy(&element, p, sizeof(element));
  return static_cast<double>(Wide<T>::Load(element));
}

// Calls body with an element of that type, unless it is one that can't be
// reduced.
template <typename Body>
void WithElement(ncclDataType_t type, const Body& body) {
  switch (type) {
    case ncclInt8:
      return body(int8_t{});
    case ncclUint8:
      return body(uint8_t{});
    case ncclInt32:
      return body(int32_t{});
    case ncclUint32:
      return body(uint32_t{});
    case ncclInt64:
      return body(int64_t{});
    case ncclUint64:
      return body(uint64_t{});
    case ncclFloat16:
      return body(Half{});
    case ncclFloat32:
      return body(float{});
    case ncclFloat64:
      return body(double{});
    case ncclBfloat16:
      return body(BFloat16{});
    default:
      return;
  }
}

}  // namespace

int64_t WidthOf(ncclDataType_t type) {
  if (type == ncclFloat8e4m3 || type == ncclFloat8e5m2) return 1;
  int64_t width = 0;
  WithElement(type, [&](auto element) { width = sizeof(element); });
  return width;
}

const char* NameOf(ncclDataType_t type) {
  static constexpr const char* kNames[] = {
      "int8",    "uint8",   "int32",   "uint32",   "int64",   "uint64",
      "float16", "float32", "float64", "bfloat16", "f8_e4m3", "f8_e5m2"};
  return WidthOf(type) == 0 ? "unknown" : kNames[type];
}

bool Reducible(ncclDataType_t type) {
  return WidthOf(type) > 0 && type != ncclFloat8e4m3 && type != ncclFloat8e5m2;
}

void Reduce(const Reduction& reduction, ncclDataType_t type,
            const void* const* sources, int count, void* out, int64_t size) {
  WithElement(type, [&](auto element) {
    ReduceAs<decltype(element)>(reduction, sources, count, out, size);
  });
}

double ScalarAt(const void* p, ncclDataType_t type) {
  double value = 1.0;
  WithElement(type,
              [&](auto element) { value = ScalarAs<decltype(element)>(p); });
  return value;
}

}  // namespace capstan::standin
