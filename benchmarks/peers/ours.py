"""This project: the same command again, with --resume."""

import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from recorded import serve, write_log, write_weights

import trainer
from control.storage import checkpoints

SETTINGS = {
    "DDQN": "--implementation DDQN --steps_per_epoch {part} --epochs 40 --eval_every 5 --checkpoint_every 5",
    "AAC": "--implementation AAC --batch_episodes 8 --max_episodes {episodes} --eval_every 5 --checkpoint_every 5",
}


def main(folder: Path, algorithm: str, steps: int) -> None:
    checkpoint_paths = list(folder.glob("*/*/*/*/version_*/checkpoints/last.ckpt"))
    write_log(folder, "resumed" if checkpoint_paths else "begun")
    flags = SETTINGS[algorithm].format(part=steps // 40, episodes=steps // 20).split()
    status = trainer.main([*flags, "--gamename", "cartpole", "--seed", "1", "--logdir", str(folder), "--resume"])
    assert status == 0
    run = max(folder.glob("*/*/*/*/version_*"), key=lambda path: int(path.name.split("_")[1]))
    with open(run / "metrics.csv") as file:
        rows = [{name: row[name] for name in row if not name.startswith("time/")} for row in csv.DictReader(file)]
    (folder / "curve.csv").write_text("".join(f"{row['env_steps']},{row}\n" for row in rows))
    write_weights(folder, checkpoints.load(run / "checkpoints" / "last.ckpt").content["state_dict"].values())


if __name__ == "__main__":
    serve(main)
