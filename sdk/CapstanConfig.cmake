# SPDX-License-Identifier: Apache-2.0
#
# Builds Capstan plugins with CMake; README.md says what is expected of a folder.
#   find_package(Capstan REQUIRED)
#   capstan_add_plugin(acme/lion)
#
# CAPSTAN_TORCH_DIR: LibTorch (include/ and lib/); default: "torch" or "libtorch"
# in the SDK's folder or beside it.

get_filename_component(CAPSTAN_SDK_DIR "${CMAKE_CURRENT_LIST_DIR}/../../.."
                       ABSOLUTE)
find_path(_capstan_torch_include ATen/ATen.h
  HINTS ${CAPSTAN_TORCH_DIR}/include ENV CAPSTAN_TORCH_DIR
  PATHS ${CAPSTAN_SDK_DIR}/torch/include ${CAPSTAN_SDK_DIR}/libtorch/include
        ${CAPSTAN_SDK_DIR}/../torch/include
        ${CAPSTAN_SDK_DIR}/../libtorch/include
  PATH_SUFFIXES include
  NO_DEFAULT_PATH)
if(NOT _capstan_torch_include)
  set(Capstan_FOUND FALSE)
  set(Capstan_NOT_FOUND_MESSAGE
      "LibTorch is not in \"${CAPSTAN_TORCH_DIR}\": set CAPSTAN_TORCH_DIR")
  return()
endif()
get_filename_component(CAPSTAN_TORCH_DIR "${_capstan_torch_include}/.."
                       ABSOLUTE)
find_program(CAPSTAN_PROTOC protoc REQUIRED)
if(NOT CMAKE_BUILD_TYPE)
  # As the trainer is built: its fingerprint of a plugin tells if not.
  set(CMAKE_BUILD_TYPE Release)
endif()

file(STRINGS ${CAPSTAN_SDK_DIR}/lib/link_flags _capstan_flags)
if(NOT TARGET Capstan::sdk)
  add_library(Capstan::sdk INTERFACE IMPORTED)
  set_target_properties(Capstan::sdk PROPERTIES
    INTERFACE_COMPILE_DEFINITIONS "USE_C10D_GLOO;USE_DISTRIBUTED"
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_INCLUDE_DIRECTORIES
      "${CAPSTAN_SDK_DIR}/include;${CAPSTAN_TORCH_DIR}/include;${CAPSTAN_TORCH_DIR}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES
      "-L${CAPSTAN_SDK_DIR}/lib;-lcapstan_strategies;-lcapstan_kernels_dispatch;-Wl,--no-as-needed;-L${CAPSTAN_TORCH_DIR}/lib;-ltorch_cpu;-lc10;-l:libgomp.so.1;-lcapstan_core;${_capstan_flags};-ldl")
endif()

# VENDOR/NAME: a folder with .cc files, NAME.proto unless it is a command, and,
# if there is one, conformance_test.cc, whose suite is known by the header that
# it includes.
function(capstan_add_plugin folder)
  string(REPLACE "/" "_" name ${folder})
  get_filename_component(stem ${folder} NAME)
  set(out ${CMAKE_BINARY_DIR}/${folder})
  file(MAKE_DIRECTORY ${out})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  set(proto ${CMAKE_SOURCE_DIR}/${folder}/${stem}.proto)
  if(EXISTS ${proto})
    add_custom_command(
      OUTPUT ${out}/${stem}.pb.cc ${out}/${stem}.pb.h
      COMMAND ${CAPSTAN_PROTOC} -I${CMAKE_SOURCE_DIR}
              -I${CAPSTAN_SDK_DIR}/include -I/usr/include
              --cpp_out=${CMAKE_BINARY_DIR} ${proto}
      DEPENDS ${proto})
    list(APPEND sources ${out}/${stem}.pb.cc)
  endif()
  add_library(${name} SHARED ${sources})
  target_include_directories(${name} PRIVATE
    ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  target_link_libraries(${name} PRIVATE Capstan::sdk -Wl,--no-undefined
    -Wl,--version-script=${CAPSTAN_SDK_DIR}/lib/plugin.lds)
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${out})

  set(test ${CMAKE_SOURCE_DIR}/${folder}/conformance_test.cc)
  if(NOT EXISTS ${test})
    return()
  endif()
  file(STRINGS ${test} lines REGEX "^#include \"tests/conformance/")
  set(suites)
  foreach(line ${lines})
    string(REGEX REPLACE ".*conformance/([a-z_]*)\\.h.*" "\\1" suite ${line})
    list(APPEND suites -Wl,--whole-archive -lcapstan_conformance_${suite}
         -Wl,--no-whole-archive)
    if(NOT suite STREQUAL "plugin_under_test")
      list(APPEND suites -lcapstan_conformance_toy
           -lcapstan_conformance_plugin_under_test)
    endif()
  endforeach()
  add_executable(${name}_test ${test})
  target_link_libraries(${name}_test PRIVATE -L${CAPSTAN_SDK_DIR}/lib ${suites}
    Capstan::sdk gtest_main gtest gmock glog pthread)
  set_target_properties(${name}_test PROPERTIES
    BUILD_RPATH "${CAPSTAN_TORCH_DIR}/lib;${CAPSTAN_SDK_DIR}/lib")
  # Paths in tests start in the build folder, as under Bazel.
  if(EXISTS ${CMAKE_SOURCE_DIR}/${folder}/testdata)
    file(COPY ${CMAKE_SOURCE_DIR}/${folder}/testdata DESTINATION ${out})
  endif()
  add_test(NAME ${folder} COMMAND ${name}_test
           WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(${folder} PROPERTIES ENVIRONMENT OMP_NUM_THREADS=1)
endfunction()
