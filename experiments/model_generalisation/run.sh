#!/usr/bin/env bash
# Five agents, three environments, high and low data. run.sh --help says how.
set -euo pipefail

usage() {
    cat <<'HELP'
Trains ER, PerfectModel, SimpleModel, CategoricalLatent and GaussianLatent on ProcMaze, ButtonGrid and PanFlute, with
much data (one update per step) and with little (ten), side by side with GNU parallel or xargs. One of these thirty
cells is one process, whose seeds are members of one program. Then draws the figure.

  experiments/model_generalisation/run.sh [--resume] [flags of trainer.py]

  AGENTS="ER PerfectModel" WORLDS=procmaze NUM_SEEDS=10 experiments/model_generalisation/run.sh
  NUM_STEPS=100000 EXP_NAME=short experiments/model_generalisation/run.sh --buffer_size 20000
  SIZE=small NUM_SEEDS=5 NUM_STEPS=30000 EXP_NAME=small experiments/model_generalisation/run.sh

Environment variables
  AGENTS     implementations                          (ER PerfectModel SimpleModel CategoricalLatent GaussianLatent)
  WORLDS     environments                             (procmaze buttongrid panflute)
  REGIMES    amounts of data                          (high low)
  NUM_SEEDS  seeds of a cell: SEED, SEED + 1, ...     (30)
  SEED       the first of them                        (0)
  NUM_STEPS  environment steps with much data; with little a tenth, rounded up   (1000000)
  SIZE       paper, or small: an hour or two instead of weeks. Mazes of 3 x 3, 3 x 3 cells with 2 buttons, 3 pipes, and
             networks of 64 units, with settings chosen by hand                 (paper)
  EXP_NAME   name of the experiment                   (model_generalisation)
  LOGDIR     folder for everything                    (exp_dir)
  JOBS       cells trained at the same time           (number of cores)
  PYTHON     interpreter                              (.venv/bin/python, else python3)

--resume with the variables and flags of an earlier call passes over the cells that finished; those that were cut go on
from their checkpoints. More NUM_STEPS lengthen them. Without it all cells are trained anew, beside what is there.
Runs are in LOGDIR/WORLD/EXP_NAME_REGIME/AGENT, what they print in LOGDIR/EXP_NAME/AGENT_WORLD_REGIME.log, figure and
numbers beside it.
Exit code: 0 when all is done, 1 when a cell did not finish, 2 for a call that cannot work, 130 after Ctrl-C.
HELP
}

ROOT=$(cd "${BASH_SOURCE[0]%run.sh}../.." && pwd)
# shellcheck source=experiments/common.sh
. "$ROOT/experiments/common.sh"

ALL_AGENTS="ER PerfectModel SimpleModel CategoricalLatent GaussianLatent"
ALL_WORLDS="procmaze buttongrid panflute"
ALL_REGIMES="high low"

# Words of the variable NAME, each one of ALLOWED and there once, as the array `chosen`.
choose() { # NAME ALLOWED
    read -r -a chosen <<<"${!1-$2}" || true
    local word before=" "
    for word in ${chosen[@]+"${chosen[@]}"}; do
        [[ " $2 " = *" $word "* && $before != *" $word "* ]] || before=
        [ -n "$before" ] || break
        before+="$word "
    done
    [ "${before:- }" != " " ] || refuse "$1 is '${!1-}'; allowed: any of $2, each once"
}

# The variable NAME as a number without leading zeros.
number() { # NAME DEFAULT LEAST
    local value=${!1:-$2}
    case $value in
        *[!0-9]* | ??????????????????) value= ;;
    esac
    [ -n "$value" ] && [ "$((10#$value))" -ge "$3" ] || refuse "$1 is '${!1}'; allowed: an integer of at least $3"
    printf -v "$1" '%d' "$((10#$value))"
}

# Flags of a cell of SIZE=small, before those of the call.
# shellcheck disable=SC2329  # called by `train`
small_flags() { # AGENT WORLD
    local flags="--hidden_sizes 64,64 --buffer_size 20000"
    case $2 in
        procmaze) flags+=" --grid_size 3 --softmax_temp 0.4 --lr 1e-3" ;;
        buttongrid) flags+=" --grid_size 3 --num_buttons 2 --softmax_temp 0.1 --lr 1e-3" ;;
        panflute) flags+=" --num_pipes 3 --softmax_temp 0.1 --lr 5e-4" ;;
    esac
    case $1 in
        ER) flags+=" --batch_size 80" ;;
        PerfectModel) flags+=" --batch_size 8" ;;
        SimpleModel) flags+=" --batch_size 8 --model_lr 1e-3" ;;
        CategoricalLatent) flags+=" --batch_size 8 --model_lr 1e-3 --num_features 8 --feature_width 8" ;;
        GaussianLatent) flags+=" --batch_size 8 --model_lr 1e-3 --num_features 8" ;;
    esac
    echo "$flags"
}

# shellcheck disable=SC2329  # called by name
train() { # AGENT_WORLD_REGIME, the job of `in_parallel`
    local name=$1 agent=${1%%_*} preset=${1#*_} steps=$NUM_STEPS
    [ "${preset#*_}" = high ] || steps=$(((NUM_STEPS + 9) / 10))
    eval "set -- $RUN_FLAGS"
    # shellcheck disable=SC2046  # words of flags
    [ "$SIZE" = paper ] || set -- $(small_flags "$agent" "${preset%_*}") "$@"
    set -- --implementation "$agent" --preset "$preset" --exp_name "${EXP_NAME}_${preset#*_}" --total_steps "$steps" "$@"
    [ "$(cat "$LOGS/$name.done" 2>/dev/null)" != "$*" ] || return 0
    rm -f "$LOGS/$name.done"
    (exec_job "$PYTHON" "$ROOT/trainer.py" "$@" ${RESUME:+--resume}) >>"$LOGS/$name.log" 2>&1 &&
        echo "$*" >"$LOGS/$name.done"
}

RESUME=
flags=()
for flag in "$@"; do
    case ${flag%%=*} in
        -h | --help) usage && exit 0 ;;
        --resume) RESUME=1 && continue ;;
        --implementation) refuse "$flag is not for here; give it as AGENTS=\"ER SimpleModel\"" ;;
        --gamename) refuse "$flag is not for here; give it as WORLDS=\"procmaze panflute\"" ;;
        --preset) refuse "$flag is not for here; give it as REGIMES=low" ;;
        --total_steps | --num_steps) refuse "$flag is not for here; give it as NUM_STEPS=..." ;;
        --num_seeds | --seed | --exp_name | --logdir)
            name=${flag%%=*} && name=${name#--}
            refuse "$flag is not for here; give it as $(echo "$name" | tr '[:lower:]' '[:upper:]')=..." ;;
        --config | --version) refuse "$flag is not for here; ask trainer.py" ;;
    esac
    flags+=("$flag")
done

choose AGENTS "$ALL_AGENTS" && agents=("${chosen[@]}")
choose WORLDS "$ALL_WORLDS" && worlds=("${chosen[@]}")
choose REGIMES "$ALL_REGIMES" && regimes=("${chosen[@]}")
number NUM_SEEDS 30 1
number SEED 0 0
number NUM_STEPS 1000000 1
SIZE=${SIZE:-paper}
[ "$SIZE" = paper ] || [ "$SIZE" = small ] || refuse "SIZE is '$SIZE'; allowed: paper or small"
EXP_NAME=${EXP_NAME:-model_generalisation}
case $EXP_NAME in
    *[!A-Za-z0-9._+=-]* | .*) refuse "EXP_NAME is '$EXP_NAME'; allowed: letters, digits and ._+=-, no dot in front" ;;
esac
prepare
LOGDIR=${LOGDIR:-exp_dir}
LOGS=$LOGDIR/$EXP_NAME
mkdir -p "$LOGS" 2>/dev/null || refuse "LOGDIR is '$LOGDIR'; no folder can be written there"
[ -n "$RESUME" ] || rm -f "$LOGS"/*.done
# shellcheck disable=SC2153  # `number` has set it
RUN_FLAGS=$(printf '%q ' --logdir "$LOGDIR" --seed "$SEED" --num_seeds "$NUM_SEEDS" ${flags[@]+"${flags[@]}"})
export LOGS NUM_STEPS SIZE EXP_NAME RUN_FLAGS RESUME
export -f train small_flags

cells=()
for agent in "${agents[@]}"; do
    for world in "${worlds[@]}"; do
        for regime in "${regimes[@]}"; do cells+=("${agent}_${world}_$regime"); done
    done
done
echo "Seeds $SEED to $((SEED + NUM_SEEDS - 1)); follow a cell with: tail -f $LOGS/${cells[0]}.log"
in_parallel train "${cells[@]}"

end_unless_finished "--resume with the same call goes on with them" "${cells[@]}"
runs=()
for name in "${cells[@]}"; do
    # Where trainer.py said that the run is: the folder of an environment has its parameters after its name.
    [ ! -e "$LOGS/$name.log" ] || runs+=("$(sed -n 's/^  run  *//p' "$LOGS/$name.log" | tail -n 1)")
done
"$PYTHON" "$ROOT/experiments/model_generalisation/figure.py" "${runs[@]}" --out "$LOGS/comparison.png"
