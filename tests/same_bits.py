#!/usr/bin/env python
"""Hashes of what a fixed list of short runs computes: metrics without clocks, weights, learned environments.

    python tests/same_bits.py                  # hold every run against tests/fixtures/same_bits.json
    python tests/same_bits.py ddqn se_bandit   # some of them
    python tests/same_bits.py --record rcp_a   # write those named, or all, anew

A change that claims to change no number is held against the record made before it. The hashes need the processor and
the torch that the record names: matrix products round by both. Tensors are compared as a set, since their names may
change while their numbers do not.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "fixtures" / "same_bits.json"

_CAR = "gymnasium.envs.classic_control:MountainCar-v0"  # Gymnasium's own, not our tensor program
_PENDULUM = "gymnasium.envs.classic_control:Pendulum-v1"
_EPISODES = (
    "--num_seeds 2 --batch_size 64 --num_grad_steps 8 --num_rand_action_rollouts 4 --training_rollouts_per_worker 3 "
    "--eval_every 2 --eval_episodes 2 --checkpoint_every 1"
)
_POLICY = "--num_seeds 2 --running_mean_len 20 --eval_every 2 --eval_episodes 2 --checkpoint_every 1"
_STEPS = "--num_seeds 2 --eval_every 2 --eval_episodes 2 --checkpoint_every 1"
_MODEL = (
    "--gamename procmaze --grid_size 3 --num_seeds 2 --hidden_sizes 20,20,20 --training_start_time 100 "
    "--steps_per_epoch 100 --eval_episodes 4 --buffer_size 500 --checkpoint_every 1"
)
_LATENT = _MODEL + " --num_features 5"
_SEARCH = (
    "--population 4 --inner_steps 200 --test_episodes 2 --center_agents 2 --eval_every 1 --keep_best 2 "
    "--retest_agents 2 --report_agents 3 --proxy_hidden_size 8 --hidden_sizes 9"
)
# Name -> the command lines of one run folder, one after another.
RUNS: dict[str, list[str]] = {
    "udrl": [f"--implementation UDRL --gamename lunarlander {_EPISODES} --epochs {n}" for n in ("2", "4 --resume")],
    "udrl_workers": [f"--implementation UDRL --gamename {_PENDULUM} {_EPISODES} --epochs 2 --num_workers 2"],
    "udrl_ranks": [f"--preset ranks --gamename lunarlander {_EPISODES} --epochs {n}" for n in ("2", "4 --resume")],
    "rcp_r": [f"--implementation RCP-R --gamename lunarlander-sparse {_EPISODES} --epochs 2"],
    "rcp_a": [f"--implementation RCP-A --gamename lunarlander {_EPISODES} --epochs {n}" for n in ("1", "3 --resume")],
    "cpg": [f"--implementation CPG --gamename beresheet {_POLICY} --max_episodes {n}" for n in ("64", "128 --resume")],
    "aac": [f"--implementation AAC --preset aac_tuned --gamename beresheet {_POLICY} --max_episodes 16"],
    "ddqn": [
        f"--implementation DDQN --gamename cartpole {_STEPS} --vary_hp --epochs {n}" for n in ("2", "4 --resume")
    ],
    "dueling": [f"--implementation DuelingDDQN --gamename {_CAR} {_STEPS} --epochs 2 --time_limit 150 --resume",
                f"--implementation DuelingDDQN --gamename {_CAR} {_STEPS} --epochs 3 --resume"],
    "er": [f"--implementation ER {_MODEL} --total_steps {n}" for n in ("300", "600 --resume")],
    "perfect": [f"--implementation PerfectModel {_MODEL} --total_steps 300"],
    "simple": [f"--implementation SimpleModel {_MODEL} --total_steps 300 --faithful_to_paper"],
    "categorical": [
        f"--implementation CategoricalLatent {_LATENT} --feature_width 6 --total_steps {n}"
        for n in ("200", "300 --resume")
    ],
    "gaussian": [f"--implementation GaussianLatent {_LATENT} --total_steps 300"],
    "se_bandit": [
        f"--implementation SE --gamename cartpole --proxy bandit {_SEARCH} --initial_draws 2 --num_workers 2 "
        f"--generations {n}"
        for n in ("2", "3 --resume")
    ],
    "se_mdp": [
        f"--implementation SE --gamename acrobot {_SEARCH} --strategy nes --inner_rule plateau --generations 2 "
        "--test_limit 60 --max_steps 40 --agents_per_proxy 2"
    ],
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="RUN", help="none means all: " + ", ".join(RUNS))
    parser.add_argument("--record", action="store_true", help="write the hashes instead of comparing them")
    options = parser.parse_args()
    names = options.names or list(RUNS)
    digests = {}
    for name in names:
        digests[name] = digest(name)
        print(name, *(f"{part} {value[:12]}" for part, value in digests[name].items()), flush=True)
    reference = json.loads(RECORD.read_text(encoding="utf-8"))
    if options.record:
        runs = {"machine": machine(), "runs": reference["runs"] | digests}
        RECORD.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
        return 0
    if reference["machine"] != machine():
        print(f"note: recorded on {reference['machine']}, here is {machine()}: other last digits say nothing")
    different = [name for name in names if reference["runs"].get(name) != digests[name]]
    print(f"different: {', '.join(different)}" if different else f"all {len(names)} equal to the bit")
    return 1 if different else 0


def machine() -> dict[str, str]:
    """What hashes depend on."""
    import torch

    return {"torch": torch.__version__, "processor": torch.backends.cpu.get_cpu_capability(), "of": platform.machine()}


def digest(name: str) -> dict[str, str]:
    """Train one of `RUNS` in a folder of its own and hash what it left."""
    with tempfile.TemporaryDirectory() as folder:
        for line in RUNS[name]:
            run(["--logdir", folder, *shlex.split(line)])
        (metrics,) = Path(folder).rglob("metrics.csv")
        hashes = {"metrics": _hash(_without_clocks(metrics))}
        for file in ("best.ckpt", "last.ckpt"):
            path = metrics.parent / "checkpoints" / file
            if path.exists():
                hashes[file] = _hash(_weights(path))
        proxy = metrics.parent / "proxy.safetensors"
        if proxy.exists():
            hashes["proxy"] = _hash(_layers(proxy))
            scores = json.loads((metrics.parent / "scores.json").read_text(encoding="utf-8"))
            del scores["verdict"]  # which says of such short searches that they failed
            hashes["scores"] = _hash(json.dumps(scores, indent=1) + "\n")
        else:
            words = ["--eval_agent", str(metrics.parent), "--num_eval_episodes", "3", "--import", _CAR.split(":")[0]]
            words.append("--no_record")
            hashes["evaluation"] = _hash(_numbers(run(words)))
        return hashes


def run(words: list[str]) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "trainer.py", *words], cwd=ROOT, env=environment, text=True, capture_output=True, check=False
    )
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        raise SystemExit(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _without_clocks(path: Path) -> str:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = sorted(name for name in rows[0] if not name.startswith("time/"))
    text = io.StringIO()
    table = csv.DictWriter(text, names, extrasaction="ignore")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _weights(path: Path) -> str:
    import torch

    weights = torch.load(path, weights_only=True)["state_dict"].values()
    return "\n".join(sorted(f"{tuple(w.shape)} {_hash(w.contiguous().numpy().tobytes())}" for w in weights))


def _layers(path: Path) -> str:
    from safetensors.numpy import load_file

    return "\n".join(f"{name} {_hash(layer.tobytes())}" for name, layer in sorted(load_file(path).items()))


def _numbers(table: str) -> str:
    """The numbers in the rows of an evaluation's table."""
    rows = [line for line in table.splitlines() if re.match(r"(greedy|sampled) ", line)]
    return " ".join(re.findall(r"-?[\d.]+", " ".join(rows).replace(",", "")))


def _hash(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
