#!/usr/bin/env bash
# Bandits that are made from policies, and agents of several kinds on these and on those that were evolved.
set -euo pipefail

usage() {
    cat <<'HELP'
Makes three clones of each policy known for an environment, then examines 32 fresh agents of each kind on all of them
and on the synthetic environments that come with the package: the numbers of a table of docs/what_is_it_worth.md.

  experiments/synthetic_environments/clones.sh cartpole|acrobot|pendulum|mountaincar-continuous

Environment variables
  SEEDS          seeds of the clones          (0 1 2)
  AGENTS         agents of each kind          (32)
  TEACHER_STEPS  training steps of the DDQN agent whose values are cloned for cartpole  (40000)
  LOGDIR         folder for everything        (exp_dir)
  PYTHON         interpreter                  (.venv/bin/python, else python3)

The numbers are in LOGDIR/clones_ENVIRONMENT.json.
Exit code: 0 when all is done, 2 for a call that cannot work.
HELP
}

ROOT=$(cd "${BASH_SOURCE[0]%clones.sh}../.." && pwd)
# shellcheck source=experiments/common.sh
. "$ROOT/experiments/common.sh"
game=${1:-}
rules=() shipped=() exams=(DDQN DuelingDDQN TD3Discrete PPO A2C)
case $game in
    --help | -h) usage && exit ;;
    cartpole)
        rules=(lqr balance crude) shipped=(cartpole-bandit cartpole-mdp)
        ;;
    acrobot) rules=(swing) shipped=(acrobot-bandit acrobot-target) ;;
    pendulum) rules=(hold) shipped=(pendulum-bandit) exams=(TD3 DDPG SAC PPO A2C) ;;
    mountaincar-continuous)
        rules=(rock) shipped=(mountaincarcontinuous-bandit) exams=(TD3 DDPG SAC PPO A2C)
        ;;
    *) refuse "the environment is '$game'; allowed: cartpole, acrobot, pendulum, mountaincar-continuous" ;;
esac
find_python
logdir=${LOGDIR:-exp_dir}

made=()
clone() { # NAME [flags of trainer.py]
    local seed
    for seed in ${SEEDS:-0 1 2}; do
        "$PYTHON" "$ROOT/trainer.py" --implementation SE --gamename "$game" --proxy bandit --preset clone --seed "$seed" \
            --exp_name "clone_$1" --logdir "$logdir" --resume --center_agents 1 --retest_agents 1 --report_agents 1 \
            "${@:2}" || [ $? = 1 ] # the verdict may be a failure
        made+=("$logdir/$game/clone_$1/SE/seed_$seed/version_0")
    done
}

for rule in "${rules[@]}"; do
    clone "$rule" --start_from "experiments.synthetic_environments.rules:$rule"
done
if [ "$game" = cartpole ]; then # what a DDQN agent that has learned it thinks each action is worth
    "$PYTHON" "$ROOT/trainer.py" --implementation DDQN --gamename cartpole --num_seeds 1 --seed 0 --lr 6e-4 --batch_size 16 \
        --hidden_sizes 64 --activation tanh --eps_decay 0.9 --eps_min 0.01 --total_steps "${TEACHER_STEPS:-40000}" --exp_name values \
        --logdir "$logdir" --resume
    clone values --clone_of values --reward_form free \
        --start_from "$logdir/cartpole/values/DDQN/seed_0/version_0/checkpoints/best.ckpt"
fi
"$PYTHON" "$ROOT/experiments/synthetic_environments/exam.py" "${shipped[@]}" "${made[@]}" --exams "${exams[@]}" \
    --agents "${AGENTS:-32}" --json "$logdir/clones_$game.json"
