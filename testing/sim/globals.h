// SPDX-License-Identifier: Apache-2.0
//
// The subject's variables: each simulated process has its own. They lie in the
// writable part of the subject's shared library; a page is swapped from the
// moment on that somebody has written to it.
#ifndef CAPSTAN_TESTING_SIM_GLOBALS_H_
#define CAPSTAN_TESTING_SIM_GLOBALS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace capstan::sim {

// Call once, before the first world: notes the variables of the loaded
// libraries whose path has one of `names` in it.
void WatchGlobals(const std::vector<std::string>& names);

using Pages = std::vector<std::unique_ptr<char[]>>;
// Puts the variables of one process away, and another's in their place. Null:
// nobody's, which are those from before the first world.
void SwapGlobals(Pages* from, const Pages* to);
// A copy of the variables as they are now.
Pages CopyGlobals();
size_t SwappedPages();
// Whether an address lies in the code of the watched libraries.
bool IsSubject(const void* address);

// The thread-local variables of all libraries but libc, which are those of a
// fiber; "" stands for those of a new thread.
void SwapThreadLocals(std::string* from, std::string* to);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTING_SIM_GLOBALS_H_
