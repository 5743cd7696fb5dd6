// SPDX-License-Identifier: Apache-2.0
//
// The emulator's fibers: a stack each, switched by hand. swapcontext would
// serve, but asks the kernel for the signal mask, which costs twenty times as
// much; other processors and the sanitizers, which must know of stacks, have
// it.
#ifndef CAPSTAN_TESTING_CUDA_FIBER_H_
#define CAPSTAN_TESTING_CUDA_FIBER_H_

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CAPSTAN_FIBERS_BY_HAND 1
#else
#include <ucontext.h>
#endif

namespace capstan::kernels::cuda::emulator {

#ifdef CAPSTAN_FIBERS_BY_HAND

struct Context {
  void* stack_pointer = nullptr;
};

// Pushes what a function must keep (System V ABI, 3.2.1) and changes stacks.
extern "C" void capstan_emulator_switch(void** from, void* to);
asm(R"(
.pushsection .text
.weak capstan_emulator_switch
.hidden capstan_emulator_switch
.type capstan_emulator_switch, @function
capstan_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size capstan_emulator_switch, . - capstan_emulator_switch
.popsection
)");

// Continues `to`, until something switches to `from`.
inline void Switch(Context* from, Context* to) {
  capstan_emulator_switch(&from->stack_pointer, to->stack_pointer);
}

// The first switch to it calls `body`, which must not return.
inline void Prepare(Context* context, char* stack, size_t bytes,
                    void (*body)()) {
  // Six registers, and the address that `ret` takes; there, the stack pointer
  // is 8 above a multiple of 16, as a call leaves it.
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16;
  uintptr_t* slots = reinterpret_cast<uintptr_t*>(top - 64);
  for (int i = 0; i < 6; ++i) slots[i] = 0;
  slots[6] = reinterpret_cast<uintptr_t>(body);
  slots[7] = 0;
  context->stack_pointer = slots;
}

#else

struct Context {
  ucontext_t context;
};

inline void Switch(Context* from, Context* to) {
  swapcontext(&from->context, &to->context);
}

inline void Prepare(Context* context, char* stack, size_t bytes,
                    void (*body)()) {
  getcontext(&context->context);
  context->context.uc_stack.ss_sp = stack;
  context->context.uc_stack.ss_size = bytes;
  context->context.uc_link = nullptr;
  makecontext(&context->context, body, 0);
}

#endif

}  // namespace capstan::kernels::cuda::emulator

#endif  // CAPSTAN_TESTING_CUDA_FIBER_H_
