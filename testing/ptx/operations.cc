// SPDX-License-Identifier: Apache-2.0
#include "testing/ptx/operations.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "absl/strings/str_cat.h"

namespace capstan::ptx {
namespace {

// Bits of a register as a value, and back. Float32's NaN is always the same
// one.
template <typename T>
T ValueOf(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
template <typename T>
uint64_t BitsOf(T value) {
  if constexpr (std::is_same_v<T, float>) {
    if (std::isnan(value)) return 0x7fffffff;
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return bits;
}

template <typename F>
void ForLanes(uint32_t lanes, F f) {
  if (lanes == 0xffffffff) {
    for (int lane = 0; lane < kWarp; ++lane) f(lane);
    return;
  }
  for (; lanes != 0; lanes &= lanes - 1) f(__builtin_ctz(lanes));
}

// Op::Of(T...) of each lane.
template <typename Op, typename T>
void Unary(const Instruction& i, Registers& r, uint32_t lanes) {
  Lanes& to = r.values[i.to[0]];
  const Lanes& a = r.values[i.from[0]];
  ForLanes(lanes, [&](int l) { to[l] = BitsOf(Op::Of(ValueOf<T>(a[l]))); });
}
template <typename Op, typename T, typename U = T>
void Binary(const Instruction& i, Registers& r, uint32_t lanes) {
  Lanes& to = r.values[i.to[0]];
  const Lanes &a = r.values[i.from[0]], &b = r.values[i.from[1]];
  ForLanes(lanes, [&](int l) {
    to[l] = BitsOf(Op::Of(ValueOf<T>(a[l]), ValueOf<U>(b[l])));
  });
}
template <typename Op, typename T>
void Ternary(const Instruction& i, Registers& r, uint32_t lanes) {
  Lanes& to = r.values[i.to[0]];
  const Lanes &a = r.values[i.from[0]], &b = r.values[i.from[1]];
  const Lanes& c = r.values[i.from[2]];
  ForLanes(lanes, [&](int l) {
    to[l] =
        BitsOf(Op::Of(ValueOf<T>(a[l]), ValueOf<T>(b[l]), ValueOf<T>(c[l])));
  });
}

// The low bits of the first in place of those of the second, from the third on,
// as many as the fourth says.
void InsertBits(const Instruction& i, Registers& r, uint32_t lanes) {
  Lanes& to = r.values[i.to[0]];
  const Lanes &a = r.values[i.from[0]], &b = r.values[i.from[1]];
  const Lanes &at = r.values[i.from[2]], &count = r.values[i.from[3]];
  ForLanes(lanes, [&](int l) {
    const uint64_t low = (uint64_t{1} << std::min<uint64_t>(count[l], 32)) - 1;
    const uint64_t mask = at[l] > 31 ? 0 : low << at[l];
    to[l] = static_cast<uint32_t>((b[l] & ~mask) | ((a[l] << at[l]) & mask));
  });
}

void SetLanes(uint32_t& predicate, uint32_t value, uint32_t lanes) {
  predicate = (predicate & ~lanes) | (value & lanes);
}
template <typename Op, typename T>
void Compare(const Instruction& i, Registers& r, uint32_t lanes) {
  const Lanes &a = r.values[i.from[0]], &b = r.values[i.from[1]];
  uint32_t result = 0;
  ForLanes(lanes, [&](int l) {
    const bool holds = Op::Of(ValueOf<T>(a[l]), ValueOf<T>(b[l]));
    result |= static_cast<uint32_t>(holds) << l;
  });
  SetLanes(r.predicates[i.to[0]], result, lanes);
}
// On predicates, all lanes at once.
template <typename Op>
void Logic(const Instruction& i, Registers& r, uint32_t lanes) {
  SetLanes(r.predicates[i.to[0]],
           Op::Of(r.predicates[i.from[0]], r.predicates[i.from[1]]), lanes);
}
void LogicNot(const Instruction& i, Registers& r, uint32_t lanes) {
  SetLanes(r.predicates[i.to[0]], ~r.predicates[i.from[0]], lanes);
}
void MovePredicate(const Instruction& i, Registers& r, uint32_t lanes) {
  // From an immediate, which is a register's value.
  SetLanes(r.predicates[i.to[0]], r.values[i.from[0]][0] != 0 ? 0xffffffff : 0,
           lanes);
}
void Select(const Instruction& i, Registers& r, uint32_t lanes) {
  Lanes& to = r.values[i.to[0]];
  const Lanes &a = r.values[i.from[0]], &b = r.values[i.from[1]];
  const uint32_t predicate = r.predicates[i.from[2]];
  ForLanes(lanes, [&](int l) { to[l] = (predicate >> l) & 1 ? a[l] : b[l]; });
}
template <int kBits>  // of a part
void Pack(const Instruction& i, Registers& r, uint32_t lanes) {
  Lanes& to = r.values[i.to[0]];
  const Lanes &low = r.values[i.from[0]], &high = r.values[i.from[1]];
  ForLanes(lanes, [&](int l) { to[l] = high[l] << kBits | low[l]; });
}
template <int kBits>
void Unpack(const Instruction& i, Registers& r, uint32_t lanes) {
  const Lanes from = r.values[i.from[0]];
  Lanes &low = r.values[i.to[0]], &high = r.values[i.to[1]];
  ForLanes(lanes, [&](int l) {
    low[l] = from[l] & ((uint64_t{1} << kBits) - 1);
    high[l] = from[l] >> kBits;
  });
}

// Integers wrap around: computed without sign.
template <typename T>
using Unsigned = std::make_unsigned_t<T>;

struct Add {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(Unsigned<T>(a) + Unsigned<T>(b));
    } else {
      return a + b;
    }
  }
};
struct Subtract {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(Unsigned<T>(a) - Unsigned<T>(b));
    } else {
      return a - b;
    }
  }
};
struct Multiply {  // integers: the low half
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(uint64_t(a) * uint64_t(b));
    } else {
      return a * b;
    }
  }
};
template <typename Wide>
struct MultiplyWide {
  template <typename T>
  static Wide Of(T a, T b) {
    return static_cast<Wide>(a) * static_cast<Wide>(b);
  }
};
struct MultiplyAdd {
  template <typename T>
  static T Of(T a, T b, T c) {
    return Add::Of(Multiply::Of(a, b), c);
  }
};
// An integer by 0 is unspecified: all bits set here. So is the least one by -1.
struct Divide {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return static_cast<T>(-1);
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) {
        return Subtract::Of(T{0}, a);
      }
    }
    return a / b;
  }
};
struct Remainder {
  template <typename T>
  static T Of(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return a % b;
  }
};
// Of float32: of two numbers, -0 is below 0, and NaN loses.
struct Maximum {
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a)) return b;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a < b ? b : a;
  }
};
struct Minimum {
  template <typename T>
  static T Of(T a, T b) {
    return b < a ? b : a;
  }
};
struct Negate {
  template <typename T>
  static T Of(T a) {
    if constexpr (std::is_integral_v<T>) return Subtract::Of(T{0}, a);
    return -a;
  }
};
struct Absolute {
  template <typename T>
  static T Of(T a) {
    return std::fabs(a);
  }
};
struct And {
  template <typename T>
  static T Of(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <typename T>
  static T Of(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <typename T>
  static T Of(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <typename T>
  static T Of(T a) {
    return ~a;
  }
};
// By more than the bits there are: all of them.
struct ShiftLeft {
  template <typename T>
  static T Of(T a, uint32_t by) {
    return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(uint64_t(a) << by);
  }
};
struct ShiftRight {
  template <typename T>
  static T Of(T a, uint32_t by) {
    constexpr uint32_t kMost = 8 * sizeof(T) - 1;
    return std::is_signed_v<T> || by <= kMost ? a >> std::min(by, kMost) : T{0};
  }
};
struct Same {
  template <typename T>
  static T Of(T a) {
    return a;
  }
};

struct MultiplyAddOnce {  // fma.rn
  template <typename T>
  static T Of(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
// fma.rm: rounded to minus infinity. The product is exact in float64, and so is
// the sum as `sum + error` (Knuth's TwoSum).
struct MultiplyAddDown {
  static float Of(float a, float b, float c) {
    const double product = static_cast<double>(a) * b, addend = c;
    const double sum = product + addend;
    if (!std::isfinite(sum)) return static_cast<float>(sum);
    if (sum == 0 && std::signbit(product) != std::signbit(addend)) return -0.0f;
    const double part = sum - product;
    const double error = (product - (sum - part)) + (addend - part);
    const float nearest = static_cast<float>(sum);
    return nearest > sum || (nearest == sum && error < 0)
               ? std::nextafter(nearest,
                                -std::numeric_limits<float>::infinity())
               : nearest;
  }
};
struct Reciprocal {
  static float Of(float a) { return 1.0f / a; }
};
struct SquareRoot {
  static float Of(float a) { return std::sqrt(a); }
};
// ex2.approx.ftz: PTX allows it an error of 2 units in the last place; this is
// rounded once from float64. Subnormal numbers are zeros of the same sign.
struct ExponentialOf2 {
  static float Flush(float a) {
    return std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0f, a) : a;
  }
  static float Of(float a) {
    return Flush(static_cast<float>(std::exp2(double{Flush(a)})));
  }
};
struct Saturate {  // to [0, 1]; NaN to 0
  static float Of(float a) { return a > 0.0f ? std::min(a, 1.0f) : 0.0f; }
};
// Between integers; from integers to float and between floats, rounded to
// nearest even.
template <typename To>
struct Convert {
  template <typename T>
  static To Of(T a) {
    return static_cast<To>(a);
  }
};
struct Truncate {  // cvt.rzi.s32.f32: clamped; NaN to 0
  static int32_t Of(float a) {
    if (std::isnan(a)) return 0;
    if (a >= 0x1p31f) return std::numeric_limits<int32_t>::max();
    if (a < -0x1p31f) return std::numeric_limits<int32_t>::min();
    return static_cast<int32_t>(a);
  }
};
struct FromFloat16 {
  static float Of(uint16_t bits) {
    return c10::Half(bits, c10::Half::from_bits());
  }
};
struct ToFloat16 {
  static uint16_t Of(float a) {
    return std::isnan(a) ? 0x7fff : c10::Half(a).x;
  }
};
struct ToBFloat16 {
  static uint16_t Of(float a) {
    return std::isnan(a) ? 0x7fff : c10::BFloat16(a).x;
  }
};
template <typename To>
struct ToTwoOf8Bits {  // a: the upper byte; beyond the greatest, that
  static uint16_t Of(float a, float b) {
    const float most = std::numeric_limits<To>::max();
    const auto one = [most](float x) -> uint16_t {
      return std::isnan(x) ? 0x7f : To(std::clamp(x, -most, most)).x;
    };
    return static_cast<uint16_t>(one(a) << 8 | one(b));
  }
};
struct SharedToGeneric {
  static uint64_t Of(uint64_t a) { return kSharedWindow + a; }
};

struct Equal {
  template <typename T>
  static bool Of(T a, T b) {
    return a == b;
  }
};
struct NotEqual {  // of numbers that can be compared
  template <typename T>
  static bool Of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a < b || a > b;
    return a != b;
  }
};
struct Less {
  template <typename T>
  static bool Of(T a, T b) {
    return a < b;
  }
};
struct LessEqual {
  template <typename T>
  static bool Of(T a, T b) {
    return a <= b;
  }
};
struct Greater {
  template <typename T>
  static bool Of(T a, T b) {
    return a > b;
  }
};
struct GreaterEqual {
  template <typename T>
  static bool Of(T a, T b) {
    return a >= b;
  }
};
struct GreaterEqualOrNan {
  static bool Of(float a, float b) { return !(a < b); }
};

using S16 = int16_t;
using S32 = int32_t;
using S64 = int64_t;
using U16 = uint16_t;
using U32 = uint32_t;
using U64 = uint64_t;

using Table = std::unordered_map<std::string, Operation>;

void AddIntegers(Table& t) {
  t["bfi.b32"] = {InsertBits, "r=rrrr"};
  t["add.s16"] = {Binary<Add, S16>, "r=rr"};
  t["add.s32"] = {Binary<Add, S32>, "r=rr"};
  t["add.s64"] = {Binary<Add, S64>, "r=rr"};
  t["sub.s16"] = {Binary<Subtract, S16>, "r=rr"};
  t["sub.s32"] = {Binary<Subtract, S32>, "r=rr"};
  t["sub.s64"] = {Binary<Subtract, S64>, "r=rr"};
  t["mul.lo.s16"] = {Binary<Multiply, S16>, "r=rr"};
  t["mul.lo.s32"] = {Binary<Multiply, S32>, "r=rr"};
  t["mul.lo.s64"] = {Binary<Multiply, S64>, "r=rr"};
  t["mul.wide.u16"] = {Binary<MultiplyWide<U32>, U16>, "r=rr"};
  t["mul.wide.u32"] = {Binary<MultiplyWide<U64>, U32>, "r=rr"};
  t["mul.wide.s32"] = {Binary<MultiplyWide<S64>, S32>, "r=rr"};
  t["mad.lo.s32"] = {Ternary<MultiplyAdd, S32>, "r=rrr"};
  t["mad.lo.s64"] = {Ternary<MultiplyAdd, S64>, "r=rrr"};
  t["div.u32"] = {Binary<Divide, U32>, "r=rr"};
  t["div.s32"] = {Binary<Divide, S32>, "r=rr"};
  t["div.u64"] = {Binary<Divide, U64>, "r=rr"};
  t["div.s64"] = {Binary<Divide, S64>, "r=rr"};
  t["rem.u32"] = {Binary<Remainder, U32>, "r=rr"};
  t["rem.s32"] = {Binary<Remainder, S32>, "r=rr"};
  t["rem.u64"] = {Binary<Remainder, U64>, "r=rr"};
  t["rem.s64"] = {Binary<Remainder, S64>, "r=rr"};
  t["min.s32"] = {Binary<Minimum, S32>, "r=rr"};
  t["min.u32"] = {Binary<Minimum, U32>, "r=rr"};
  t["min.s64"] = {Binary<Minimum, S64>, "r=rr"};
  t["max.s32"] = {Binary<Maximum, S32>, "r=rr"};
  t["max.u32"] = {Binary<Maximum, U32>, "r=rr"};
  t["max.s64"] = {Binary<Maximum, S64>, "r=rr"};
  t["neg.s32"] = {Unary<Negate, S32>, "r=r"};
  t["neg.s64"] = {Unary<Negate, S64>, "r=r"};
}

template <typename T>
void AddBits(const std::string& bits, Table& t) {
  t["and.b" + bits] = {Binary<And, T>, "r=rr"};
  t["or.b" + bits] = {Binary<Or, T>, "r=rr"};
  t["xor.b" + bits] = {Binary<Xor, T>, "r=rr"};
  t["not.b" + bits] = {Unary<Not, T>, "r=r"};
  t["shl.b" + bits] = {Binary<ShiftLeft, T, U32>, "r=rr"};
  t["shr.u" + bits] = {Binary<ShiftRight, T, U32>, "r=rr"};
  t["shr.s" + bits] = {Binary<ShiftRight, std::make_signed_t<T>, U32>, "r=rr"};
  for (const char* type : {"b", "u", "s", "f"}) {
    t[absl::StrCat("mov.", type, bits)] = {Unary<Same, T>, "r=r"};
    t[absl::StrCat("selp.", type, bits)] = {Select, "r=rrp"};
  }
}

void AddFloats(Table& t) {
  // Without a rounding modifier it is .rn, too.
  for (const char* rounding : {".f32", ".rn.f32"}) {
    t[absl::StrCat("add", rounding)] = {Binary<Add, float>, "r=rr"};
    t[absl::StrCat("sub", rounding)] = {Binary<Subtract, float>, "r=rr"};
    t[absl::StrCat("mul", rounding)] = {Binary<Multiply, float>, "r=rr"};
  }
  for (const char* rounding : {".f64", ".rn.f64"}) {
    t[absl::StrCat("add", rounding)] = {Binary<Add, double>, "r=rr"};
    t[absl::StrCat("mul", rounding)] = {Binary<Multiply, double>, "r=rr"};
  }
  t["fma.rn.f32"] = {Ternary<MultiplyAddOnce, float>, "r=rrr"};
  t["fma.rn.f64"] = {Ternary<MultiplyAddOnce, double>, "r=rrr"};
  t["fma.rm.f32"] = {Ternary<MultiplyAddDown, float>, "r=rrr"};
  t["div.rn.f32"] = {Binary<Divide, float>, "r=rr"};
  t["rcp.rn.f32"] = {Unary<Reciprocal, float>, "r=r"};
  t["sqrt.rn.f32"] = {Unary<SquareRoot, float>, "r=r"};
  t["ex2.approx.ftz.f32"] = {Unary<ExponentialOf2, float>, "r=r"};
  t["max.f32"] = {Binary<Maximum, float>, "r=rr"};
  t["neg.f32"] = {Unary<Negate, float>, "r=r"};
  t["abs.f32"] = {Unary<Absolute, float>, "r=r"};
}

void AddConversions(Table& t) {
  t["cvt.u16.u32"] = {Unary<Convert<U16>, U32>, "r=r"};
  t["cvt.u16.u64"] = {Unary<Convert<U16>, U64>, "r=r"};
  t["cvt.u32.u16"] = {Unary<Convert<U32>, U16>, "r=r"};
  t["cvt.u32.u64"] = {Unary<Convert<U32>, U64>, "r=r"};
  t["cvt.u64.u32"] = {Unary<Convert<U64>, U32>, "r=r"};
  t["cvt.u64.u16"] = {Unary<Convert<U64>, U16>, "r=r"};
  t["cvt.s64.s32"] = {Unary<Convert<S64>, S32>, "r=r"};
  t["cvt.rn.f32.u32"] = {Unary<Convert<float>, U32>, "r=r"};
  t["cvt.rn.f32.s32"] = {Unary<Convert<float>, S32>, "r=r"};
  t["cvt.rn.f32.s64"] = {Unary<Convert<float>, S64>, "r=r"};
  t["cvt.rn.f32.f64"] = {Unary<Convert<float>, double>, "r=r"};
  t["cvt.f64.f32"] = {Unary<Convert<double>, float>, "r=r"};
  t["cvt.sat.f32.f32"] = {Unary<Saturate, float>, "r=r"};
  t["cvt.rzi.s32.f32"] = {Unary<Truncate, float>, "r=r"};
  t["cvt.f32.f16"] = {Unary<FromFloat16, U16>, "r=r"};
  t["cvt.rn.f16.f32"] = {Unary<ToFloat16, float>, "r=r"};
  t["cvt.rn.bf16.f32"] = {Unary<ToBFloat16, float>, "r=r"};
  t["cvt.rn.satfinite.e4m3x2.f32"] = {
      Binary<ToTwoOf8Bits<c10::Float8_e4m3fn>, float>, "r=rr"};
  t["cvt.rn.satfinite.e5m2x2.f32"] = {
      Binary<ToTwoOf8Bits<c10::Float8_e5m2>, float>, "r=rr"};
  t["cvta.to.global.u64"] = {Unary<Same, U64>, "r=r"};
  t["cvta.shared.u64"] = {Unary<SharedToGeneric, U64>, "r=r"};
  t["mov.b32.pack"] = {Pack<16>, "r=rr"};
  t["mov.b64.pack"] = {Pack<32>, "r=rr"};
  t["mov.b32.unpack"] = {Unpack<16>, "rr=r"};
  t["mov.b64.unpack"] = {Unpack<32>, "rr=r"};
}

template <typename T>
void AddComparisons(const std::string& type, Table& t) {
  t["setp.eq." + type] = {Compare<Equal, T>, "p=rr"};
  t["setp.ne." + type] = {Compare<NotEqual, T>, "p=rr"};
  t["setp.lt." + type] = {Compare<Less, T>, "p=rr"};
  t["setp.le." + type] = {Compare<LessEqual, T>, "p=rr"};
  t["setp.gt." + type] = {Compare<Greater, T>, "p=rr"};
  t["setp.ge." + type] = {Compare<GreaterEqual, T>, "p=rr"};
}

Table MakeTable() {
  Table t;
  AddIntegers(t);
  AddBits<U16>("16", t);
  AddBits<U32>("32", t);
  AddBits<U64>("64", t);
  AddFloats(t);
  AddConversions(t);
  AddComparisons<S16>("s16", t);
  AddComparisons<U16>("u16", t);
  AddComparisons<S32>("s32", t);
  AddComparisons<U32>("u32", t);
  AddComparisons<S64>("s64", t);
  AddComparisons<U64>("u64", t);
  AddComparisons<float>("f32", t);
  t["setp.geu.f32"] = {Compare<GreaterEqualOrNan, float>, "p=rr"};
  t["setp.eq.b64"] = {Compare<Equal, U64>, "p=rr"};
  t["and.pred"] = {Logic<And>, "p=pp"};
  t["or.pred"] = {Logic<Or>, "p=pp"};
  t["xor.pred"] = {Logic<Xor>, "p=pp"};
  t["not.pred"] = {LogicNot, "p=p"};
  t["mov.pred"] = {MovePredicate, "p=r"};
  return t;
}

}  // namespace

const Operation* FindOperation(absl::string_view opcode) {
  static const Table* const table = new Table(MakeTable());
  const auto it = table->find(std::string(opcode));
  return it == table->end() ? nullptr : &it->second;
}

}  // namespace capstan::ptx
