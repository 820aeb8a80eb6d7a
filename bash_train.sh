#!/usr/bin/env bash
# Many seeds of one run, side by side. ./bash_train.sh --help says how.
set -euo pipefail

usage() {
    cat <<'HELP'
Trains several seeds side by side, one thread each: with GNU parallel, which shows a bar, or else with xargs.

  ./bash_train.sh [--resume] [flags of trainer.py]

  ./bash_train.sh --implementation RCP-A --exp_name paper
  SEEDS="25 26" JOBS=2 ./bash_train.sh --gamename cartpole --epochs 50

Environment variables
  SEEDS    seeds, separated by blanks             (25 26 27 28 29)
  JOBS     seeds trained at the same time         (number of cores)
  PYTHON   interpreter                            (.venv/bin/python, else python3)

--resume with the flags of an earlier call skips the seeds that finished; the others go on from their checkpoints.
Each seed writes its output to a seed_N.log below LOGDIR/bash_train; joblog.tsv beside it holds times and exit codes.
Exit code: 0 when every seed finished, 1 when one did not, 2 for a call that cannot work, 130 after Ctrl-C.
HELP
}

ROOT=$(cd "${BASH_SOURCE[0]%bash_train.sh}." && pwd)
# shellcheck source=experiments/common.sh
. "$ROOT/experiments/common.sh"

# The flags read by trainer.py itself, which trains nothing here: logdir and the folder of the runs, a line each.
read_flags='
import os, sys
sys.path.insert(0, sys.argv[1])
import trainer
from control.storage import run_dir
def show(settings):
    print(settings.run.logdir, os.path.dirname(run_dir.parent(settings.run)), sep="\n")
    return 0
trainer.run = show
sys.exit(trainer.main(sys.argv[2:]))'

has_metrics() {
    [ -n "$(find "$1" -name metrics.csv -print 2>/dev/null | head -n 1)" ]
}

# A folder for each set of flags, such as CPG-cartpole-1f3870be: GNU parallel resumes by job number, the same seed only
# under the same call.
folder_name() {
    local game=${runs%/*/*}
    printf '%s-%s-%x\n' "${runs##*/}" "${game##*/}" "$(printf '%s\n' "$seeds" "$@" | cksum | cut -d ' ' -f 1)"
}

# shellcheck disable=SC2329  # called by name
train_seed() { # SEED, in a bash of its own
    local seed=$1
    eval "set -- $BASH_TRAIN_FLAGS"
    set -- "$PYTHON" "$ROOT/trainer.py" "$@" --seed "$seed"
    echo "$$" >"$LOGS/seed_$seed.pid" # exec keeps the number
    exec_job "$@" >>"$LOGS/seed_$seed.log" 2>&1
}

# shellcheck disable=SC2329  # called by name
run_seed() { # SEED, the job of `in_parallel`; what xargs does not do itself stands here
    local seed=$1 status=0 began
    [ -z "$JOB_STOP" ] || [ ! -e "$JOB_STOP" ] || return 0
    [ -z "$BASH_TRAIN_SAYS" ] || echo "seed $seed begins"
    began=$(date +%s)
    # shellcheck disable=SC2016  # which the other bash expands
    "$BASH" -c 'train_seed "$1"' _ "$seed" || status=$?
    if [ -n "$BASH_TRAIN_SAYS" ]; then
        case $status in
            0) echo "seed $seed finished after $(($(date +%s) - began)) s" ;;
            *) echo "seed $seed ended with status $status after $(($(date +%s) - began)) s" ;;
        esac
    fi
    [ -n "$JOB_STOP" ] || return "$status"
    printf '%s\t:\t%s\t%s\t0\t0\t%s\t0\trun_seed %s\n' "$(place_of "$seed")" "$began" \
        "$(($(date +%s) - began))" "$status" "$seed" >>"$LOGS/joblog.tsv"
}

# shellcheck disable=SC2329
place_of() { # SEED among all, from 1 on: the number of GNU parallel's job
    local seed place=0
    for seed in $BASH_TRAIN_SEEDS; do
        place=$((place + 1))
        [ "$seed" != "$1" ] || echo "$place"
    done
}

# seeds_that finished|failed: by the last row of each seed in the joblog; columns 7 to 9 are exit code, signal, command.
# A seed without a row was never run to an end, which counts as failed.
seeds_that() {
    awk -F '\t' -v seeds="$seeds" -v wanted="$1" '
        FNR > 1 { n = split($9, word, " "); finished[word[n]] = ($7 == 0 && $8 == 0) }
        END { n = split(seeds, seed, " "); for (i = 1; i <= n; i++)
            if ((wanted == "finished") == (finished[seed[i]] == 1)) print seed[i] }' "$joblog" 2>/dev/null
}

resume=
for flag in "$@"; do
    case $flag in
        -h | --help) usage && exit 0 ;;
        --resume) resume=1 ;;
        --version) refuse "$flag is not for here; ask trainer.py" ;;
        --seed | --seed=*) refuse "$flag is not for here; give seeds as SEEDS=\"25 26\" ./bash_train.sh" ;;
    esac
done

seeds=$(echo "${SEEDS:-25 26 27 28 29}" | tr -s '[:space:]' ' ' | sed -e 's/^ //' -e 's/ $//')
for seed in ${seeds:-none}; do
    case $seed in
        *[!0-9]*) refuse "SEEDS is '${SEEDS:-}'; allowed: integers of at least 0, separated by blanks" ;;
    esac
done
[ -z "$(echo "$seeds" | tr ' ' '\n' | sort | uniq -d)" ] || refuse "SEEDS is '$seeds'; allowed: each seed once"
prepare

largest=$(echo "$seeds" | tr ' ' '\n' | sort -n | tail -n 1)
read_back=$("$PYTHON" -c "$read_flags" "$ROOT" "$@" --seed "$largest") || exit 2
logdir=${read_back%$'\n'*}
runs=${read_back#*$'\n'}

identity=()
for flag in "$@"; do
    [ "$flag" = --resume ] || identity+=("$flag")
done
LOGS=$logdir/bash_train/$(folder_name ${identity[@]+"${identity[@]}"})
mkdir -p "$LOGS" 2>/dev/null || refuse "logdir is '$logdir'; no folder can be written there"
BASH_TRAIN_FLAGS=$([ $# -eq 0 ] || printf '%q ' "$@")
BASH_TRAIN_SEEDS=$seeds BASH_TRAIN_SAYS=
[ -z "$xargs" ] && [ -t 2 ] || BASH_TRAIN_SAYS=1
export LOGS BASH_TRAIN_FLAGS BASH_TRAIN_SEEDS BASH_TRAIN_SAYS
export -f train_seed run_seed place_of

# Seeds outlive a GNU parallel that was killed outright; a second process on the same run would spoil it.
for seed in $seeds; do
    pid=$(cat "$LOGS/seed_$seed.pid" 2>/dev/null || true)
    case "$(ps -ww -p "${pid:-0}" -o args= 2>/dev/null || true) " in
        *" --seed $seed "*) refuse "seed $seed is still training, as process $pid; wait or: kill -INT $pid" ;;
    esac
done

joblog=$LOGS/joblog.tsv
options+=(--joblog "$joblog")
[ -z "$resume" ] || options+=(--resume-failed) # which is --resume, and the failed ones once more
if [ -n "$resume" ] && [ -s "$joblog" ]; then
    skipped=$(seeds_that finished | xargs)
    [ -z "$skipped" ] || echo "Finished earlier and skipped: $skipped (delete $joblog to run them again)"
else
    rm -f "$joblog" "$LOGS"/seed_*.log
fi
echo "Seeds $seeds; follow one with: tail -f $LOGS/seed_${seeds%% *}.log"

if [ -n "$xargs" ]; then # which keeps no joblog and skips nothing
    [ -s "$joblog" ] ||
        printf 'Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n' >"$joblog"
    todo=$(seeds_that failed)
else
    todo=$seeds
fi
[ -z "$BASH_TRAIN_SAYS" ] || options+=(--ungroup)
interrupted=
# shellcheck disable=SC2086  # one argument per seed
[ -z "$todo" ] || in_parallel run_seed $todo
touch "$joblog"

unfinished=$(seeds_that failed)
if [ -n "$unfinished" ]; then
    echo "bash_train.sh: these seeds did not finish (--resume with the same flags continues them) or failed:" >&2
    for seed in $unfinished; do
        log=$LOGS/seed_$seed.log
        verdict=$(sed -n 's/^  verdict *//p' "$log" 2>/dev/null | tail -n 1 || true) # of a search, which may fail by it
        echo "  seed $seed: ${verdict:-$(tail -n 1 "$log" 2>/dev/null)} [$log]" >&2
    done
fi
! has_metrics "$runs" ||
    printf 'Figure and table over the seeds: %q %q --plot %q\n' "$PYTHON" "$ROOT/trainer.py" "$runs"
[ -z "$interrupted" ] || exit 130
[ -z "$unfinished" ]
