#!/bin/sh
# run.sh RESULTS [NIXL]: everything that pages are measured beside, on a machine with two GPUs, nvcc and PyTorch. Lines
# of JSON go into the file RESULTS, and what was said besides into RESULTS.log. NIXL is the folder that its wheel was
# unpacked in; without it NIXL is left out. Each step is stopped when its time is over, and all after 6 minutes; a step
# that fails is named, and the others go on.
set -u
results=$1 nixl=${2:-}
here=$(cd "$(dirname "$0")" && pwd) folder=$(mktemp -d) begin=$(date +%s) failed=0
trap 'rm -rf "$folder"' EXIT
# NVLink multicast stays off.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONUNBUFFERED=1
: > "$results"
: > "$results.log"

# step SECONDS COMMAND…
step() {
    left=$((begin + 355 - $(date +%s)))
    [ "$1" -gt "$left" ] || left=$1
    shift
    echo "== $*" >> "$results.log"
    status=124
    if [ "$left" -gt 0 ]; then
        timeout -k 3 "$left" "$@" > "$folder/out" 2>> "$results.log"
        status=$?
        grep '^{' "$folder/out" | tee -a "$results"
        grep -v '^{' "$folder/out" >> "$results.log"
    fi
    [ $status = 0 ] && return
    echo "exit status $status ($(($(date +%s) - begin)) s since the beginning): $*" | tee -a "$results.log" >&2
    failed=1
    return 1
}

if step 40 nvcc -O3 -std=c++17 -arch=native -o "$folder/bare" "$here/bare.cu"; then
    for part in two gpu batch host; do
        step 45 "$folder/bare" --only $part || [ $part = batch ] || step 25 "$folder/bare" --only $part --no-bulk
    done
fi
if [ -n "$nixl" ]; then
    # UCX writes into a file which way it takes.
    export UCX_PROTO_INFO=y UCX_LOG_FILE="$folder/ucx.log"
    step 70 env PYTHONPATH="$nixl" python3 "$here/nixl_pages.py"
    unset UCX_PROTO_INFO UCX_LOG_FILE
    grep 'memory write by\|cuda_ipc' "$folder/ucx.log" 2> /dev/null | sort -u -k4 | head -40 >> "$results.log"
fi
for part in one two reshard; do
    step 35 python3 "$here/torch_pages.py" --part $part
done
exit $failed
