# SPDX-License-Identifier: Apache-2.0
# Each kernel's bandwidth against the card's: all are bound by memory, and wrong
# is less than half.
. tests/gpu/common.sh
program=$BUILD/bench/gpu_kernels
[ -x "$program" ] || skip "no $program: build //bench:gpu_kernels"
"$program" "${KERNELS_MIB:-1024}" | tee "$FOLDER/kernels.jsonl" ||
  wrong "gpu_kernels fails"
while read -r line; do result kernels "$line"; done <"$FOLDER/kernels.jsonl"
python3 - "$FOLDER/kernels.jsonl" <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
known = [k for k in lines if k.get("fraction") is not None]
slow = [f"{k['kernel']} in {k['dtype']} {100 * k['fraction']:.0f} %"
        for k in known if k["fraction"] < 0.5]
if not lines:
    sys.exit("gpu_kernels has measured nothing")
if slow:
    sys.exit("below half of the card's bandwidth: " + ", ".join(slow))
if len(known) < len(lines):
    print("the card's bandwidth isn't known (gpu_specs.cc)")
    sys.exit(78)
print(f"{len(lines)} kernels reach half of the card's bandwidth or more")
PYTHON
