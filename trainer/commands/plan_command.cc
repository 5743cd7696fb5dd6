// Placeholder by the lead so that the tree links; the plan helper overwrites it.
#include "trainer/commands/commands.h"
namespace capstan {
int PlanCommand(const RunOptions&) { return 1; }
}  // namespace capstan
