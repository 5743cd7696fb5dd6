# SPDX-License-Identifier: Apache-2.0
# Each kernel's bandwidth against the card's.
. tests/gpu/common.sh
program=$BUILD/bench/gpu_kernels
[ -x "$program" ] || skip "no $program: build //bench:gpu_kernels"
"$program" "${KERNELS_MIB:-1024}" | tee "$FOLDER/kernels.jsonl" || exit 1
while read -r line; do result kernels "$line"; done <"$FOLDER/kernels.jsonl"
