# SPDX-License-Identifier: Apache-2.0
# The allocator's peak against the plan, which must be within 15 %.
. tests/gpu/common.sh
far=''
for strategy in ddp zero2 fsdp; do
  log=$FOLDER/memory_$strategy.log
  train_for "memory_$strategy" "${STEPS:-5}" \
    --set strategy="capstan.$strategy" | tee "$log" ||
    wrong "the run under $strategy fails"
  numbers=$(speed "memory_$strategy") ||
    wrong "metrics of $strategy can't be read"
  # "  all tensors        planned  48.5 MiB  measured  49.0 MiB"
  compared=$(python3 - "$log" <<'PYTHON'
import json, re, sys
UNIT = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
found = re.search(r"all tensors +planned +(\S+) (.iB) +measured +(\S+) (.iB)",
                  open(sys.argv[1]).read())
if not found:
    sys.exit(1)
planned, measured = (float(found[i]) * UNIT[found[i + 1]] for i in (1, 3))
print(json.dumps({"planned": planned, "measured": measured}))
sys.exit(0 if abs(planned - measured) <= 0.15 * measured else 3)
PYTHON
  )
  case $? in
    0) ;;
    3) far="$far $strategy" ;;
    *) wrong "the summary under $strategy doesn't tell plan and peak" ;;
  esac
  result memory "{\"strategy\": \"$strategy\", \"plan\": $compared, \
\"measured\": $numbers}"
done
[ -z "$far" ] || wrong "the plan is over 15 % off under$far"
echo "plan and peak are within 15 % under ddp, zero2 and fsdp"
