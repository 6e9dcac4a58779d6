#!/bin/sh
# Runs the test programs of a bundle that `cargo xtask gpu-bundle` made, and then what measures messages
# between GPUs. Needs only this folder.
#
#   run.sh [NAME...]    all of tests/, or those named (mem-cuda.hardware, ...)
#
# Where there is OpenCL, drivers that compile kernels anew for each context (PoCL, NVIDIA's) may take longer than all that
# CUDA does. So the tests of dtype-cuda.oracle on OpenCL are a part of their own, with a limit of its own, and run last.
#
# OUT    where results go (default: the current folder):
#        gpu-bundle.json  outcome of each program, the machine, what was skipped
#        gpu-bundle.log   everything the programs said
#        skips.log        what was skipped and why
#        NAME.json, NAME.svg  what `programs/figures NAME` measured
# LIMIT  seconds that each program may take (default: 120)
# FIGURES  what programs/figures is to measure (default: p2p; empty: nothing); with NAMEs nothing, unless
#        it is set
# FIGURES_OPTIONS  its options, --brief for instance
#
# Prints what failed programs said, then a table. Ends with 1 if anything failed.

here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-.}
limit=${LIMIT:-120}
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
: >"$out/skips.log" || exit 1
: >"$out/gpu-bundle.log"
export GAPLESS_SKIP_LOG="$out/skips.log"

# Text as the inside of a JSON string.
json() {
    printf '%s' "$1" | tr '\t\n' '  ' | sed 's/\\/\\\\/g; s/"/\\"/g'
}

if [ $# -eq 0 ]; then
    set -- $(cd "$here/tests" && ls)
    figures=${FIGURES-p2p}
else
    figures=${FIGURES-}
fi
[ -x "$here/programs/figures" ] || figures=

gpus=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null)
one=$(mktemp)
table=$(mktemp)
entries=
passed_sum=0
failed_sum=0
# The program that comes in two parts, and what selects its second.
split=dtype-cuda.oracle
second=opencl::

# Runs a program, or a part of it: what to call it, the program, its arguments.
run_part() {
    name=$1
    program=$2
    shift 2
    started=$(date +%s)
    timeout -k 5 "$limit" "$here/tests/$program" "$@" >"$one" 2>&1 </dev/null
    status=$?
    seconds=$(($(date +%s) - started))
    # A program that ran itself again, for one test, says so in lines about more filtered tests than it has itself.
    counts=$(awk -v parts=$# '/^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) well = $(i - 1)
            if ($i ~ /^failed/) badly = $(i - 1)
            if ($i ~ /^filtered/) without = $(i - 1)
        }
        if (least == "" || without + 0 < least) {
            least = without + 0
            passed = failed = 0
        }
        if (without + 0 == least) {
            passed += well
            failed += badly
        }
    } END {
        if (parts == 0 && least > 0) passed = failed = 0
        print passed + 0, failed + 0
    }' "$one")
    passed=${counts% *}
    failed=${counts#* }
    case $status in
        0) outcome=ok ;;
        124 | 137) outcome="too long" ;;
        *) outcome=failed ;;
    esac
    # A program that ended badly without saying how many tests failed counts as one.
    if [ "$outcome" != ok ] && [ "$failed" -eq 0 ]; then
        failed=1
    fi
    { echo "== $name: $outcome"; cat "$one"; } >>"$out/gpu-bundle.log"
    if [ "$outcome" != ok ]; then
        echo "== $name: $outcome (status $status)"
        tail -n 80 "$one"
    fi
    printf '%-32s %-9s %4d passed %3d failed %4d s\n' \
        "$name" "$outcome" "$passed" "$failed" "$seconds" >>"$table"
    entries="$entries${entries:+,}
    {\"name\": \"$(json "$name")\", \"outcome\": \"$outcome\", \"passed\": $passed, \"failed\": $failed, \"seconds\": $seconds}"
    passed_sum=$((passed_sum + passed))
    failed_sum=$((failed_sum + failed))
}

last=
for name in "$@"; do
    case $name in
        "$split")
            run_part "$name" "$name" --skip "$second"
            last=$name
            ;;
        # The others of these need no GPU.
        xtq.lib) run_part "$name" "$name" suite gathered ;;
        *) run_part "$name" "$name" ;;
    esac
done
if [ -n "$last" ]; then
    run_part "$last $second" "$last" "$second"
fi

for name in $figures; do
    started=$(date +%s)
    timeout -k 5 "$limit" "$here/programs/figures" "$name" $FIGURES_OPTIONS --out "$out" \
        >"$one" 2>&1 </dev/null
    status=$?
    seconds=$(($(date +%s) - started))
    failed=1
    case $status in
        0) outcome=ok failed=0 ;;
        # This machine lacks what it is about.
        2) outcome=skipped failed=0; echo "SKIPPED: figures $name: $(tail -n 1 "$one")" >>"$out/skips.log" ;;
        124 | 137) outcome="too long" ;;
        *) outcome=failed ;;
    esac
    { echo "== figures $name: $outcome"; cat "$one"; } >>"$out/gpu-bundle.log"
    if [ "$outcome" != skipped ]; then
        echo "== figures $name: $outcome"
        cat "$one"
    fi
    printf '%-32s %-9s %4d passed %3d failed %4d s\n' \
        "figures $name" "$outcome" 0 "$failed" "$seconds" >>"$table"
    entries="$entries${entries:+,}
    {\"name\": \"figures $(json "$name")\", \"outcome\": \"$outcome\", \"passed\": 0, \"failed\": $failed, \"seconds\": $seconds}"
    failed_sum=$((failed_sum + failed))
done

sort -u "$out/skips.log" >"$one"
skipped=$(grep -c . "$one")
skips=
while IFS= read -r line; do
    skips="$skips${skips:+,}
    \"$(json "$line")\""
done <"$one"

cat >"$out/gpu-bundle.json" <<END
{
  "machine": {
    "host": "$(json "$(uname -srm)")",
    "cpus": $(nproc 2>/dev/null || echo 0),
    "gpus": "$(json "$gpus")"
  },
  "tests": [$entries
  ],
  "skipped": [$skips
  ]
}
END

echo
echo "${gpus:-no GPU}"
cat "$one" "$table"
rm -f "$one" "$table"
echo "$passed_sum passed, $failed_sum failed, $skipped skipped"
[ "$failed_sum" -eq 0 ]
