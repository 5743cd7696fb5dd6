// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/amx_emulator.h"

#include <cpuid.h>
#include <glog/logging.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstring>

#include "base/simd/instruction_set.h"

namespace capstan::kernels {
namespace {

// As LDTILECFG reads it.
struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(Config) == 64, "64 bytes by the manual");

struct State {
  bool in_use = false;
  int64_t products = 0;
  AmxTile tiles[8];
};
thread_local State state;

float WithoutSubnormals(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

float Bf16At(const uint8_t* p) {
  const uint32_t bits = (uint32_t{p[1]} << 24) | (uint32_t{p[0]} << 16);
  float x;
  std::memcpy(&x, &bits, 4);
  return WithoutSubnormals(x);
}

bool Load(const Config& config, State* s) {
  if (config.palette != 1) return false;  // 0 would release them
  for (int i = 0; i < 8; ++i) {
    AmxTile& tile = s->tiles[i];
    tile = AmxTile();
    tile.rows = config.rows[i];
    tile.bytes = config.bytes[i];
    if (tile.rows > 16 || tile.bytes > 64) return false;
    if ((tile.rows == 0) != (tile.bytes == 0)) return false;
  }
  s->in_use = true;
  return true;
}

// An instruction: VEX.128.pp.0F38.W0 opcode, ModRM and, of memory, more.
class Instruction {
 public:
  explicit Instruction(greg_t* registers)
      : registers_(registers),
        at_(reinterpret_cast<const uint8_t*>(registers[REG_RIP])) {}

  // False if it isn't one of those, or isn't allowed.
  bool Run(State* s) {
    if (at_[0] != 0xc4 || (at_[1] & 0x1f) != 2 || (at_[2] & 0x84) != 0) {
      return false;
    }
    const bool memory = at_[4] >> 6 != 3;
    const bool known = memory ? OfMemory(s) : OfTiles(s);
    if (known) registers_[REG_RIP] += length_;
    return known;
  }

 private:
  enum Prefix { kNone, k66, kF3, kF2 };
  Prefix prefix() const { return static_cast<Prefix>(at_[2] & 3); }
  int opcode() const { return at_[3]; }
  int reg() const { return (at_[4] >> 3) & 7; }
  int rm() const { return at_[4] & 7; }
  int vvvv() const { return (~at_[2] >> 3) & 15; }

  int64_t Register(int number) const {
    static constexpr int kOrder[] = {
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
        REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return registers_[kOrder[number]];
  }

  bool OfTiles(State* s) {
    length_ = 5;
    if (opcode() == 0x49 && prefix() == kNone && at_[4] == 0xc0) {
      *s = {false, s->products, {}};  // TILERELEASE
      return true;
    }
    if (!s->in_use || reg() > 7) return false;
    AmxTile& tile = s->tiles[reg()];
    if (opcode() == 0x49 && prefix() == kF2 && rm() == 0) {  // TILEZERO
      std::memset(tile.data, 0, sizeof(tile.data));
      return tile.rows > 0;
    }
    if (opcode() != 0x5c || prefix() != kF3 || vvvv() > 7) return false;
    const AmxTile &a = s->tiles[rm()], &b = s->tiles[vvvv()];  // TDPBF16PS
    if (&a == &b || &a == &tile || &b == &tile) return false;
    if (tile.rows == 0 || a.rows != tile.rows || b.bytes != tile.bytes ||
        a.bytes % 4 != 0 || b.bytes % 4 != 0 || a.bytes / 4 != b.rows) {
      return false;
    }
    MultiplyTiles(a, b, &tile);
    ++s->products;
    return true;
  }

  bool OfMemory(State* s) {
    const bool rows = opcode() == 0x4b;
    if (rows && rm() != 4) return false;  // needs an index, which is the stride
    uint8_t* const address = Address();
    if (opcode() == 0x49 && prefix() == kNone && reg() == 0) {  // LDTILECFG
      Config config;
      std::memcpy(&config, address, sizeof(config));
      return Load(config, s);
    }
    if (!rows || !s->in_use) return false;
    AmxTile& tile = s->tiles[reg()];
    if (tile.rows == 0) return false;
    for (int r = 0; r < tile.rows; ++r) {
      if (prefix() == kF2) {  // TILELOADD
        std::memset(tile.data[r], 0, sizeof(tile.data[r]));
        std::memcpy(tile.data[r], address + r * stride_, tile.bytes);
      } else if (prefix() == kF3) {  // TILESTORED
        std::memcpy(address + r * stride_, tile.data[r], tile.bytes);
      } else {
        return false;
      }
    }
    return true;
  }

  // Of the operand in memory; notes the instruction's length and the stride.
  uint8_t* Address() {
    const int mod = at_[4] >> 6;
    const uint8_t* next = at_ + 5;
    int base = rm() | (at_[1] & 0x20 ? 0 : 8);
    stride_ = 0;
    if (rm() == 4) {
      const uint8_t sib = *next++;
      const int index = ((sib >> 3) & 7) | (at_[1] & 0x40 ? 0 : 8);
      if (index != 4) stride_ = Register(index) << (sib >> 6);
      base = (sib & 7) | (at_[1] & 0x20 ? 0 : 8);
    }
    const bool far = mod == 2 || (mod == 0 && base % 8 == 5);
    int64_t address = 0;
    if (mod == 1) {
      address = static_cast<int8_t>(*next++);
    } else if (far) {
      int32_t displacement;
      std::memcpy(&displacement, next, 4);
      next += 4;
      address = displacement;
    }
    length_ = next - at_;
    if (mod == 0 && base % 8 == 5) {
      // Of this program counter, or of nothing.
      if (rm() == 5) address += registers_[REG_RIP] + length_;
    } else {
      address += Register(base);
    }
    return reinterpret_cast<uint8_t*>(address);
  }

  greg_t* const registers_;
  const uint8_t* const at_;
  int64_t length_ = 0, stride_ = 0;
};

void OnIllegalInstruction(int /*signal*/, siginfo_t* /*info*/, void* context) {
  greg_t* const registers =
      static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (Instruction(registers).Run(&state)) return;
  static constexpr char kWhat[] =
      "amx_emulator: an instruction that AMX hasn't, or refuses in this "
      "state.\n";
  if (write(STDERR_FILENO, kWhat, sizeof(kWhat) - 1) < 0) _exit(1);
  signal(SIGILL, SIG_DFL);  // it is met again
}

}  // namespace

__attribute__((target("fma"))) void MultiplyTiles(const AmxTile& a,
                                                  const AmxTile& b,
                                                  AmxTile* c) {
  for (int m = 0; m < c->rows; ++m) {
    float sums[2][16] = {};
    for (int k = 0; k < b.rows; ++k) {
      for (int n = 0; n < c->bytes / 4; ++n) {
        for (int i = 0; i < 2; ++i) {
          sums[i][n] = WithoutSubnormals(
              __builtin_fmaf(Bf16At(a.data[m] + 4 * k + 2 * i),
                             Bf16At(b.data[k] + 4 * n + 2 * i), sums[i][n]));
        }
      }
    }
    for (int n = 0; n < c->bytes / 4; ++n) {
      uint8_t* const place = c->data[m] + 4 * n;
      float old;
      std::memcpy(&old, place, 4);
      const float both = WithoutSubnormals(sums[0][n] + sums[1][n]);
      const float sum = WithoutSubnormals(WithoutSubnormals(old) + both);
      std::memcpy(place, &sum, 4);
    }
  }
}

AmxEmulator::AmxEmulator() {
  struct sigaction action = {};
  action.sa_sigaction = OnIllegalInstruction;
  action.sa_flags = SA_SIGINFO;
  CHECK_EQ(sigaction(SIGILL, &action, &before_), 0);
}

AmxEmulator::~AmxEmulator() {
  CHECK_EQ(sigaction(SIGILL, &before_, nullptr), 0);
}

bool AmxEmulator::needed() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned int kTiles = 1u << 24;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0;
}

bool AmxEmulator::runs() {
  return BestInstructionSet() == InstructionSet::kAvx512 &&
         (needed() || HasAmxProducts());
}

bool AmxEmulator::in_use() { return state.in_use; }
int64_t AmxEmulator::products() { return state.products; }

}  // namespace capstan::kernels
