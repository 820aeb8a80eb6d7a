"""Sound runs and files, and what they give: the measure of what is made of damaged ones."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fuzzing import checkpoints, stand_ins
from fuzzing.files import PAYLOAD
from fuzzing.flag_lines import small
from fuzzing.sandbox import Ended
from helpers import different, learned, run_folder
from proxies import KINDS, REWARDS, written

_CLOCK = re.compile(r"^.*(: \S*(ckpt|safetensors)$|steps/s).*$|[\d.]+ seconds.*", re.MULTILINE)


class SoundRun:
    """A run of two epochs in ``folder``, with what its last checkpoint gives in each of its uses."""

    def __init__(self, name: str, folder: Path, call: Callable[..., Ended]):
        self.name, self.folder = name, folder
        self.settings, self.longer = checkpoints.RUNS[name]
        result = call(self._flags(), folder, cpu=60, wall=900)
        assert result.accepted, result
        self.last = (run_folder(folder / "exp_dir") / "checkpoints" / "last.ckpt").read_bytes()
        self._expected: dict[str, object] = {}
        self._call = call

    def prepare(self, folder: Path, mode: str, data: bytes) -> list[str]:
        """Lay a last checkpoint of that content into ``folder``. Returns the command line that uses it."""
        folder.mkdir(parents=True)
        if mode == "resume":
            shutil.copytree(self.folder / "exp_dir", folder / "exp_dir")
            (run_folder(folder / "exp_dir") / "checkpoints" / "last.ckpt").write_bytes(data)
            return [*self._flags(**self.longer), "--resume"]
        (folder / "damaged.ckpt").write_bytes(data)
        if mode == "reload":
            return [*self._flags(), "--reload", "damaged.ckpt"]
        eval_flags = ["--num_agents", "1", "--no_real_baseline"] if self.name == "SE" else ["--no_record"]
        return ["--eval_agent", "damaged.ckpt", "--num_eval_episodes", "3", *eval_flags]

    def _flags(self, **overrides: object) -> list[str]:
        values = small(str(self.settings.get("implementation", "UDRL"))) | self.settings | overrides
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]

    def different(self, mode: str, result: Ended, folder: Path) -> list[str]:
        """What differs from the sound checkpoint's numbers."""
        if mode not in self._expected:
            place = self.folder.parent / f"{self.folder.name}-{mode}"
            intact_result = self._call(self.prepare(place, mode, self.last), place, cpu=60, wall=900)
            assert intact_result.accepted, intact_result
            self._expected[mode] = self._numbers(mode, intact_result, place)
        expected, actual = self._expected[mode], self._numbers(mode, result, folder)
        if isinstance(actual, str):
            return [] if actual == expected else [repr(actual)[-300:]]
        return [*different(expected, actual)]

    @staticmethod
    def _numbers(mode: str, result: Ended, folder: Path) -> object:
        if mode == "eval_agent":
            return without_clocks(result.out)
        run = run_folder(folder / "exp_dir")
        run_values: dict[str, object] = {tag: torch.tensor(np.array(column)) for tag, column in learned(run).items()}
        for path in sorted(run.glob("checkpoints/*.ckpt")):
            content = torch.load(path, weights_only=True)
            run_values |= {
                f"{path.name} {part}": content[part] for part in ("state_dict", "optimizer_states", "understudy")
            }
            run_values[f"{path.name} understudy"].pop("settings")
        return run_values


class SoundProxy:
    """A synthetic environment, ``searched`` for or random, and what is printed of an agent that trains on it."""

    def __init__(self, kind: str, folder: Path, call: Callable[..., Ended], searched: bool):
        folder.mkdir(parents=True)
        name = "RN" if kind == "reward" else "SE"
        path, settings = folder / "proxy.safetensors", small(name) | {"proxy": kind, "implementation": name}
        if searched:
            search_result = call(
                [word for name, value in settings.items() for word in (f"--{name}", str(value))], folder, cpu=60
            )
            assert search_result.accepted, search_result
            path = run_folder(folder / "exp_dir") / "proxy.safetensors"
        else:
            config = dataclasses.replace((KINDS | REWARDS)[kind][0], deploy_steps=60, inner_steps=60)
            lists = {"hidden_sizes": [8]} if "hidden_sizes" in settings else {}  # a file has values, not words
            written(path, kind, config=config, description={"settings": settings | lists, "scores": {}})
        self.data, (self.header, self.tensors) = path.read_bytes(), stand_ins.parts(str(path))
        place = folder.parent / f"{folder.name}-sound"
        eval_result = call(self.prepare(place, self.data), place, cpu=60, wall=900)
        assert eval_result.accepted, eval_result
        self._expected = without_clocks(eval_result.out)

    @staticmethod
    def prepare(folder: Path, data: bytes) -> list[str]:
        """Lay a file of that content into ``folder``. Returns the command line that uses it."""
        folder.mkdir(parents=True)
        (folder / "damaged.safetensors").write_bytes(data)
        (folder / "payload.py").write_text(PAYLOAD)
        return [
            "--eval_agent",
            "damaged.safetensors",
            "--num_agents",
            "2",
            "--num_eval_episodes",
            "4",
            "--no_real_baseline",
        ]

    def different(self, result: Ended) -> str:
        """What was printed, where that is not what the sound file's is."""
        actual = without_clocks(result.out)
        return "" if actual == self._expected else repr(actual)[-300:]


def without_clocks(text: str) -> str:
    """What a command printed, without paths and times."""
    rows = [
        re.sub(r" +[\d.]+$", "", line) if line.startswith(("synthetic ", "real ", "reward network ")) else line
        for line in text.splitlines()
    ]
    return _CLOCK.sub("", "\n".join(rows))
