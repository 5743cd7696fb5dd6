# SPDX-License-Identifier: Apache-2.0
#
# Builds Capstan plugins with make; README.md says what is expected of a folder.
#   include $(CAPSTAN_SDK)/capstan.mk
#   $(eval $(call capstan_plugin,acme/lion))
#
# Set beforehand, or on make's command line:
#   CAPSTAN_TORCH_DIR  LibTorch (include/ and lib/); default: "torch" or
#                      "libtorch" in this folder or beside it
#   CAPSTAN_BUILD      default: build
#   CXXFLAGS, LDFLAGS  come last

CAPSTAN_SDK_DIR := $(abspath $(dir $(lastword $(MAKEFILE_LIST))))
CAPSTAN_TORCH_DIR ?= $(firstword $(wildcard $(foreach folder,\
  $(CAPSTAN_SDK_DIR) $(dir $(CAPSTAN_SDK_DIR)),\
  $(folder)/torch $(folder)/libtorch)))
ifeq ($(wildcard $(CAPSTAN_TORCH_DIR)/include/ATen/ATen.h),)
  $(error LibTorch is not in "$(CAPSTAN_TORCH_DIR)": set CAPSTAN_TORCH_DIR)
endif
CAPSTAN_BUILD ?= build

# As the trainer is built: its fingerprint of a plugin tells if not.
CAPSTAN_CXXFLAGS = -std=c++17 -O2 -DNDEBUG -fPIC -Wall \
  -DUSE_C10D_GLOO -DUSE_DISTRIBUTED -I. -I$(CAPSTAN_BUILD) \
  -isystem $(CAPSTAN_SDK_DIR)/include -isystem $(CAPSTAN_TORCH_DIR)/include \
  -isystem $(CAPSTAN_TORCH_DIR)/include/torch/csrc/api/include
CAPSTAN_LIBS = -L$(CAPSTAN_SDK_DIR)/lib \
  -lcapstan_strategies -lcapstan_kernels_dispatch \
  -Wl,--no-as-needed -L$(CAPSTAN_TORCH_DIR)/lib -ltorch_cpu -lc10 \
  -l:libgomp.so.1 -lcapstan_core @$(CAPSTAN_SDK_DIR)/lib/link_flags -ldl

.PHONY: all test
.DEFAULT_GOAL := all

$(CAPSTAN_BUILD)/%.pb.cc $(CAPSTAN_BUILD)/%.pb.h: %.proto
	@mkdir -p $(@D)
	protoc -I. -I$(CAPSTAN_SDK_DIR)/include -I/usr/include \
	  --cpp_out=$(CAPSTAN_BUILD) $<

$(CAPSTAN_BUILD)/%.o: %.cc
	@mkdir -p $(@D)
	$(CXX) $(CAPSTAN_CXXFLAGS) $(CXXFLAGS) -MMD -c $< -o $@

$(CAPSTAN_BUILD)/%.pb.o: $(CAPSTAN_BUILD)/%.pb.cc
	$(CXX) $(CAPSTAN_CXXFLAGS) $(CXXFLAGS) -MMD -c $< -o $@

# VENDOR/NAME: a folder with .cc files, NAME.proto unless it is a command, and,
# if there is one, conformance_test.cc, whose suite is known by the header that
# it includes.
define capstan_plugin
$(1)_out := $(CAPSTAN_BUILD)/$(1)
$(1)_library := $(CAPSTAN_BUILD)/$(1)/lib$(subst /,_,$(1)).so
$(1)_proto := $(if $(wildcard $(1)/$(notdir $(1)).proto),\
  $(CAPSTAN_BUILD)/$(1)/$(notdir $(1)).pb)
$(1)_objects := $$(addsuffix .o,$$($(1)_proto)) \
  $(patsubst %.cc,$(CAPSTAN_BUILD)/%.o,\
    $(filter-out %_test.cc,$(wildcard $(1)/*.cc)))
$(1)_suite := $(shell sed -n \
  's|^.include "tests/conformance/\([a-z_]*\)\.h"|\1|p' \
  $(1)/conformance_test.cc 2>/dev/null)

$$($(1)_objects) $$($(1)_out)/conformance_test.o: \
  | $$(addsuffix .h,$$($(1)_proto))
-include $$($(1)_objects:.o=.d) $$($(1)_out)/conformance_test.d

$$($(1)_library): $$($(1)_objects)
	$$(CXX) -shared -o $$@ $$^ -Wl,-soname,$$(@F) -Wl,--no-undefined \
	  -Wl,--version-script=$$(CAPSTAN_SDK_DIR)/lib/plugin.lds \
	  $$(CAPSTAN_LIBS) $$(LDFLAGS)

$$($(1)_out)/conformance_test: $$($(1)_out)/conformance_test.o
	$$(CXX) -o $$@ $$< -L$$(CAPSTAN_SDK_DIR)/lib \
	  $$(foreach suite,$$($(1)_suite),-Wl,--whole-archive \
	    -lcapstan_conformance_$$(suite) -Wl,--no-whole-archive) \
	  $$(if $$(filter-out plugin_under_test,$$($(1)_suite)),\
	    -lcapstan_conformance_toy -lcapstan_conformance_plugin_under_test) \
	  $$(CAPSTAN_LIBS) -lgtest_main -lgtest -lgmock -lglog -lpthread \
	  -Wl,-rpath,$$(CAPSTAN_TORCH_DIR)/lib -Wl,-rpath,$$(CAPSTAN_SDK_DIR)/lib \
	  $$(LDFLAGS)

# Where paths in tests start, as under Bazel.
.PHONY: test_$(1)
test_$(1): $$($(1)_library) $$($(1)_out)/conformance_test
	if [ -d $(1)/testdata ]; then cp -r $(1)/testdata $$($(1)_out)/; fi
	cd $$(CAPSTAN_BUILD) && OMP_NUM_THREADS=1 $(1)/conformance_test

all: $$($(1)_library)
test: $(if $(wildcard $(1)/conformance_test.cc),test_$(1))
endef

.SECONDARY:
