// SPDX-License-Identifier: Apache-2.0
//
// AMX for tests on processors without it: the machine code that was written for
// the others runs, and each tile instruction, which such a processor refuses by
// SIGILL, is executed here as Intel's manual defines it ("Intel 64 and IA-32
// Architectures Software Developer's Manual", volume 2: LDTILECFG, TILERELEASE,
// TILELOADD, TILESTORED, TILEZERO, TDPBF16PS).
#ifndef CAPSTAN_KERNELS_GEMM_AMX_EMULATOR_H_
#define CAPSTAN_KERNELS_GEMM_AMX_EMULATOR_H_

#include <signal.h>

#include <cstdint>

namespace capstan::kernels {

struct AmxTile {
  int rows = 0, bytes = 0;  // as configured
  alignas(64) uint8_t data[16][64] = {};
};

// TDPBF16PS: c [M, N] float32 += a [M, 2 K] b of bfloat16, where row k of b has
// its N pairs of rows 2 k and 2 k + 1. Even and odd terms are summed apart, in
// order, by fused multiply-adds, then both and c are added. Rounds to nearest,
// ties to even; subnormals are 0.
void MultiplyTiles(const AmxTile& a, const AmxTile& b, AmxTile* c);

// While it lives, tile instructions of all threads are emulated, each thread
// with tiles of its own. What a processor with AMX would refuse, too, ends the
// process by SIGILL after a sentence. At most one at a time.
class AmxEmulator {
 public:
  AmxEmulator();
  ~AmxEmulator();
  AmxEmulator(const AmxEmulator&) = delete;
  AmxEmulator& operator=(const AmxEmulator&) = delete;

  // Whether code for AMX can run while one lives: emulated, or because the
  // processor and the kernel let it.
  static bool runs();
  // Whether it is emulated.
  static bool needed();

  // Of the calling thread, where it is: whether its tiles are configured and
  // not released, and how many TDPBF16PS it ever executed.
  static bool in_use();
  static int64_t products();

 private:
  struct sigaction before_;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_GEMM_AMX_EMULATOR_H_
