#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# stubs.sh FOLDER LIBRARY..: for each of NVIDIA's libraries that these link and
# that this folder doesn't write by hand, FOLDER/SONAME.c and SONAME.lds (its
# version script): functions that say their name and abort, weak, so that
# cublas.c and others may define some. What must exist is read from the
# libraries, so it can't be out of date.
set -euo pipefail
out=$1
shift
mkdir -p "$out"
nm -D --undefined-only "$@" | awk -v out="$out" '
  # By prefix, for symbols without a version, and with one that is no soname.
  function soname(symbol, version) {
    if (version ~ /^lib.*\.so\.[0-9]+$/) return version
    if (symbol ~ /^cublasLt/) return "libcublasLt.so.13"
    if (symbol ~ /^cublas/) return "libcublas.so.13"
    if (symbol ~ /^cusparseLt/) return "libcusparseLt.so.0"
    if (symbol ~ /^cusparse/) return "libcusparse.so.12"
    if (symbol ~ /^cufft/) return "libcufft.so.12"
    if (symbol ~ /^cuFile/) return "libcufile.so.0"
    if (symbol ~ /^curand/) return "libcurand.so.10"
    if (symbol ~ /^cudnn/) return "libcudnn.so.9"
    if (symbol ~ /^p?nccl/) return "libnccl.so.2"
    if (symbol ~ /^nvshmem/) return "libnvshmem_host.so.3"
    return ""
  }
  $1 ~ /^[Uw]$/ {
    split($2, parts, "@")
    library = soname(parts[1], parts[2])
    if (library == "" || library == "libcudart.so.13" || seen[$2]++) next
    if (!(library in text)) {
      text[library] = "#include <stdio.h>\n#include <stdlib.h>\n"
    }
    # A version without a definition that could have it would be refused.
    version[library] = parts[2]
    if (parts[1] == "cudnnGetVersion") {
      # Asked before an attention is chosen; that of third_party/nvidia.bzl.
      text[library] = text[library] \
        "size_t cudnnGetVersion(void) { return 91900; }\n"
      next
    }
    text[library] = text[library] \
      "__attribute__((weak)) void " parts[1] "(void) {\n" \
      "  fprintf(stderr, \"stand-in device: nothing stands in for " \
      parts[1] "\\n\");\n  abort();\n}\n"
  }
  END {
    # Linked, though nothing of them is used by name.
    split("libcublas.so.13 libcublasLt.so.13 libcusparseLt.so.0 " \
          "libcusparse.so.12 libcufft.so.12 libcufile.so.0 libcurand.so.10 " \
          "libcudnn.so.9 libnccl.so.2 libnvshmem_host.so.3", all, " ")
    for (i in all) {
      library = all[i]
      if (!(library in text)) text[library] = "int unused_" i ";\n"
      printf "%s", text[library] > (out "/" library ".c")
      v = version[library]
      printf "%s{ global: *; };\n", (v == "" ? "" : v " ") \
        > (out "/" library ".lds")
    }
  }'
