#!/usr/bin/env bash
# Searches an MDP on which value learners and policy learners train: with PPO's agents, then DDQN's, then PPO's again. First states are
# learned, and episodes are ten steps that nothing but their limit ends.
#
#   ./experiments/synthetic_environments/broad.sh --logdir exp_dir
#
# SEED (0) is that of the search. Further flags are trainer.py's, for each of the three stages.
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PYTHON=${PYTHON:-$ROOT/.venv/bin/python}
SEED=${SEED:-0}
case $SEED in '' | *[!0-9]*) echo "broad.sh: SEED is '$SEED'; allowed: an integer of at least 0" >&2; exit 2 ;; esac
export OMP_NUM_THREADS=1

mdp=(--implementation SE --gamename cartpole --learned_reset --max_steps 10 --done_bias -5 --proxy_init normal)
ppo=(--agent PPO --num_envs 4 --rollout_steps 128 --batch_size 128 --ppo_epochs 4 --lr 1e-3 --ent_coef 0.01 --hidden_sizes 64
    --inner_steps 10000)
ddqn=(--agent DDQN --eps_fraction 0.5 --inner_steps 5000 --agents_per_proxy 2)
later=(--generations 10 --step_size 0.005 --keep_best 1 --retest_agents 8)

stage() { # NAME SEED FLAGS...; prints the file of the winner
    local name=$1 seed=$2
    shift 2
    "$PYTHON" "$ROOT/trainer.py" "${mdp[@]}" --exp_name "$name" --seed "$seed" "$@" >&2
}
winner() { # NAME SEED FLAGS...; the newest winner of a stage
    local name=$1 seed=$2 folder=exp_dir
    shift 2
    while [ $# -gt 0 ]; do [ "$1" != --logdir ] || folder=$2; shift; done
    find "$folder/cartpole/$name/SE/seed_$seed" -name proxy.safetensors | sort -V | tail -n 1
}

stage broad_ppo "$SEED" "${ppo[@]}" --generations 40 --initial_draws 16 --initial_members 8 --keep_best 3 --retest_agents 8 "$@"
stage broad_ddqn $((SEED + 1)) "${ddqn[@]}" "${later[@]}" --start_from "$(winner broad_ppo "$SEED" "$@")" "$@"
stage broad $((SEED + 1)) "${ppo[@]}" "${later[@]}" --start_from "$(winner broad_ddqn $((SEED + 1)) "$@")" "$@"
