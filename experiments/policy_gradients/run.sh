#!/usr/bin/env bash
# VPG, EPG, BPG, CPG and AAC on the 300-step lander, and the figure of them. run.sh --help says how.
set -euo pipefail

usage() {
    cat <<'HELP'
Trains VPG, EPG, BPG, CPG and AAC as published, and AAC with --preset aac_tuned, on beresheet (LunarLander, 300 steps),
side by side with GNU parallel or xargs; the seeds of one are members of one program. Then draws the figure.

  experiments/policy_gradients/run.sh [flags of trainer.py]

  experiments/policy_gradients/run.sh
  SEEDS="0 1" EPISODES=640 LOGDIR=try_dir experiments/policy_gradients/run.sh --eval_every 5

Environment variables
  SEEDS     seeds, one after the other               (25 26 27 28 29)
  EPISODES  episodes to train                        (6000)
  LOGDIR    folder for everything                    (exp_dir)
  JOBS      implementations trained at the same time (number of cores)
  PYTHON    interpreter                              (.venv/bin/python, else python3)

Called again, it goes on: what is finished stays, the rest resumes from its checkpoint. More EPISODES lengthen the runs.
Runs are in LOGDIR/beresheet/PRESET/IMPLEMENTATION, what they print in LOGDIR/policy_gradients/NAME.log, figure and
numbers beside it.
Exit code: 0 when all is done, 1 when a run did not finish, 2 for a call that cannot work, 130 after Ctrl-C.
HELP
}

ROOT=$(cd "${BASH_SOURCE[0]%run.sh}../.." && pwd)
# shellcheck source=experiments/common.sh
. "$ROOT/experiments/common.sh"

ARMS=(VPG/published EPG/published BPG/published CPG/published AAC/published AAC/aac_tuned)

# shellcheck disable=SC2329  # called by name
train() { # IMPLEMENTATION/PRESET, the job of `in_parallel`
    local name=${1/\//_}
    eval "set -- $1 $RUN_FLAGS"
    (exec_job "$PYTHON" "$ROOT/trainer.py" --implementation "${1%/*}" --preset "${1#*/}" --exp_name "${1#*/}" \
        --gamename beresheet --max_episodes "$EPISODES" --logdir "$LOGDIR" --resume "${@:2}") \
        >>"$LOGS/$name.log" 2>&1 && touch "$LOGS/$name.done"
}

for flag in "$@"; do
    case ${flag%%=*} in
        -h | --help) usage && exit 0 ;;
        --seed | --num_seeds) refuse "$flag is not for here; give seeds as SEEDS=\"25 26\"" ;;
        --max_episodes) refuse "$flag is not for here; give it as EPISODES=6000" ;;
        --logdir) refuse "$flag is not for here; give it as LOGDIR=exp_dir" ;;
        --implementation | --preset | --exp_name | --gamename | --resume | --config | --version)
            refuse "$flag is not for here; ask trainer.py" ;;
    esac
done

read -r -a seeds <<<"${SEEDS:-25 26 27 28 29}" || true
for i in "${!seeds[@]}"; do
    case ${seeds[i]} in
        *[!0-9]* | ???????????????????) seeds=() && break ;;
    esac
    [ "$((10#${seeds[i]}))" = "$((10#${seeds[0]} + i))" ] || { seeds=() && break; }
done
[ ${#seeds[@]} -gt 0 ] || refuse "SEEDS is '${SEEDS:-}'; allowed: integers of at least 0, each one above the last"
EPISODES=${EPISODES:-6000}
case $EPISODES in
    0 | *[!0-9]*) refuse "EPISODES is '$EPISODES'; allowed: an integer of at least 1" ;;
esac
prepare
LOGDIR=${LOGDIR:-exp_dir}
LOGS=$LOGDIR/policy_gradients
mkdir -p "$LOGS" 2>/dev/null || refuse "LOGDIR is '$LOGDIR'; no folder can be written there"
rm -f "$LOGS"/*.done
RUN_FLAGS=$(printf '%q ' --seed "${seeds[0]}" --num_seeds "${#seeds[@]}" "$@")
export LOGDIR LOGS EPISODES RUN_FLAGS
export -f train

echo "Seeds ${seeds[*]}; follow one run with: tail -f $LOGS/CPG_published.log"
in_parallel train "${ARMS[@]}"

end_unless_finished "the same call goes on with them" "${ARMS[@]/\//_}"
members=seed_${seeds[0]}
[ ${#seeds[@]} = 1 ] || members+=-${seeds[-1]}
"$PYTHON" "$ROOT/experiments/policy_gradients/figure.py" "$LOGDIR"/beresheet/{published,aac_tuned}/*/"$members" \
    --out "$LOGS/comparison.png"
