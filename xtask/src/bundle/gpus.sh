#!/bin/sh
# Measures, by `figures` alone, all that is between the GPUs of a host: collectives and transposes beside NCCL,
# processes that share GPUs, an epidemic, reshards, pages, and what the death of a rank costs. A table comes last.
# Within ten minutes.
#
#   gpus.sh [RANKS]    as many ranks (default: one on each GPU). With fewer GPUs several ranks share one, under the
#                      Multi-Process Service, which is started where none runs; what needs NCCL is left out then
#
# OUT      where NAME.json, NAME.svg and gpus.log go (default: the current folder)
# SECONDS_ALL  what all may take together (default: 580)
# ROWS     which of them (default: "coll-gpu coll-layouts reshard pages acc8 acc9 deaths faraji1 faraji2")
# PROGRAM  `figures` (default: programs/figures beside this file)
# NCCL     NCCL's library (default: libnccl.so.2); where it is not found, there is nothing beside the collectives
# TABLE    for faraji2: a table that `gapless tune` wrote, on this GPU or on another machine
# QUICK    tiny sizes, if not empty: to see that all of it works

here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-.}
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
all=${SECONDS_ALL:-580}
figures=${PROGRAM:-$here/programs/figures}
nccl=${NCCL:-libnccl.so.2}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
ranks=${1:-$gpus}
[ "$ranks" -ge 2 ] || ranks=2
used=$gpus
[ "$used" -ge 1 ] || used=1
[ "$used" -le "$ranks" ] || used=$ranks
# Where ranks share GPUs, one service for all rows: a row that is cut off cannot end one of its own.
pipes=${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}
if [ "$ranks" -gt "$gpus" ] && [ ! -e "$pipes/control" ] && command -v nvidia-cuda-mps-control >/dev/null; then
    pipes=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY="$pipes" CUDA_MPS_LOG_DIRECTORY="$pipes"
    if (unset CUDA_VISIBLE_DEVICES; nvidia-cuda-mps-control -d); then
        trap 'echo quit | nvidia-cuda-mps-control >/dev/null 2>&1; rm -rf "$pipes"' EXIT
        trap 'exit 1' INT TERM
    fi
fi
begun=$(date +%s)
table=$(mktemp)
failed=0
: >"$out/gpus.log"

case $nccl in
    /*) [ -e "$nccl" ] && beside="--nccl $nccl" || beside=--alone ;;
    *) ldconfig -p 2>/dev/null | grep -q "$nccl" && beside="--nccl $nccl" || beside=--alone ;;
esac

# Processes of all GPUs, where each has so many.
each() {
    echo "$(($1 * used)),$(($2 * used)),$(($3 * used))"
}

# A row: at most how many seconds it may take, the experiment, its options.
row() {
    most=$1
    name=$2
    shift 2
    left=$((all - $(date +%s) + begun))
    [ "$most" -le "$left" ] || most=$left
    started=$(date +%s)
    if [ "$most" -le 5 ]; then
        outcome='no time'
    else
        echo "== figures $name $*" | tee -a "$out/gpus.log"
        timeout -k 5 "$most" "$figures" "$name" "$@" ${QUICK:+--quick} --out "$out" \
            >>"$out/gpus.log" 2>&1 </dev/null
        case $? in
            0) outcome=ok ;;
            2) outcome=skipped ;;
            124 | 137) outcome='too long' ;;
            *) outcome=failed ;;
        esac
    fi
    case $outcome in ok | skipped) ;; *) failed=$((failed + 1)) ;; esac
    met=0
    marks=0
    if [ "$outcome" != 'no time' ] && [ -e "$out/$name.json" ]; then
        met=$(grep -c '"met": *true' "$out/$name.json")
        marks=$((met + $(grep -c '"met": *false' "$out/$name.json")))
    fi
    printf '%-14s %-9s %4d s  %3d of %3d marks met\n' \
        "$name" "$outcome" "$(($(date +%s) - started))" "$met" "$marks" >>"$table"
}

for name in ${ROWS:-coll-gpu coll-layouts reshard pages acc8 acc9 deaths faraji1 faraji2}; do
    rm -f "$out/$name.json"
    case $name in
        coll-gpu)
            row 120 $name --ranks "$ranks" --start-mps $beside \
                --sizes 8,512,4096,32768,131072,1048576,8388608,67108864,536870912
            ;;
        coll-layouts) row 180 $name --ranks "$ranks" --start-mps $beside --sides 250,512,768,1024 ;;
        # 4 GiB.
        reshard) row 60 $name --ranks "$ranks" --start-mps --side 46336 --time 0.5 ;;
        pages) row 60 $name --ranks "$ranks" --start-mps --page 8192 --time 0.5 ;;
        acc8 | acc9) row 60 $name --ranks "$ranks" --start-mps --rounds 1 ;;
        deaths) row 120 $name --ranks "$ranks" --start-mps ;;
        faraji1) row 60 $name --start-mps --processes 8 --gpus "$used" --time 0.01 ;;
        faraji2)
            row 120 $name --start-mps --processes "$(each 4 8 16)" --gpus "$used" --time 0.005 \
                --sizes 4,4096,65536,1048576,8388608 ${TABLE:+--table "$TABLE"}
            ;;
        *) row 60 "$name" --ranks "$ranks" ;;
    esac
done

echo
echo "$ranks ranks on $gpus GPUs, $(($(date +%s) - begun)) s; what was said is in $out/gpus.log"
grep -h '^FAILED\|^figures: ' "$out/gpus.log" | uniq
cat "$table"
rm -f "$table"
[ "$failed" -eq 0 ]
