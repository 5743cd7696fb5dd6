# SPDX-License-Identifier: Apache-2.0
# compute-sanitizer on the kernels' test.
. tests/gpu/common.sh
sanitizer=$(command -v compute-sanitizer ||
  ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
  skip "compute-sanitizer isn't here: it comes with the CUDA Toolkit"
test=$BUILD/kernels/cuda/cuda_kernels_gpu_test
[ -x "$test" ] || skip "no $test: build //kernels/cuda:all"
failed=0
for tool in memcheck racecheck synccheck; do
  echo "== $tool"
  if timeout 120 "$sanitizer" --tool "$tool" --error-exitcode 9 "$test"; then
    result sanitizer "{\"tool\": \"$tool\", \"clean\": true}"
  else
    result sanitizer "{\"tool\": \"$tool\", \"clean\": false}"
    failed=1
  fi
done
exit "$failed"
