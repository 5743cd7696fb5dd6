// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/parameters.h"

#include <gtest/gtest.h>

#include <vector>

#include "plugins/sdk/idle_for_test.h"

namespace capstan {
namespace {

// Two units with a bit of everything.
class RoleModel : public IdleModel {
 public:
  RoleModel()
      : IdleModel({{"embed_tokens.weight", {5, 3}, 0, true, {}, false},
                   {"positions", {1, 5, 3}, 0, true, {}, false},
                   {"body.weight", {3, 3}, 1},
                   {"body.bias", {3}, 1},
                   {"body.kernel", {3, 3, 3}, 1},
                   {"final_norm.weight", {3}, 2},
                   {"lm_head.weight", {5, 3}, 2}},
                  {"embed", "body", "head"}) {}
};

TEST(ParameterRoleTest, FollowsFromUnitsShapesAndNames) {
  const RoleModel model;
  std::vector<ParameterRole> roles;
  for (int i = 0; i < 7; ++i) roles.push_back(model.role(i));
  EXPECT_EQ(roles, std::vector<ParameterRole>(
                       {ParameterRole::kEmbedding, ParameterRole::kEmbedding,
                        ParameterRole::kMatrix, ParameterRole::kOther,
                        ParameterRole::kOther, ParameterRole::kNorm,
                        ParameterRole::kHead}));
}

}  // namespace
}  // namespace capstan
