"""Whatever is typed, read or played ends in an answer: status 0, 2 or 130, one line about what is wrong, and no number
that is silently another one. The quick suite tries a few inputs of each kind, `make fuzz` thousands: FUZZ_CASES says
how many, FUZZ_SEED which ones. A failure is made as small as it can be, and its input is printed."""

import hashlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

import inputs
import trainer
from helpers import different, learned, run_folder
from inputs import PAYLOAD, Content, small, words_of
from sandbox import Ended, call, complaints, shell_command

pytestmark = pytest.mark.xdist_group("fuzz")  # all cases start from the same few runs

CASES = {"lines": (20, 5000), "files": (10, 2000), "checkpoints": (4, 500), "proxies": (6, 500),
         "environments": (4, 100)}  # fmt: skip
QUICK = pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.fuzz)], ids=["few", "many"])


def tried(kind: str, quick: bool, check: Callable[[st.DataObject, Path], None], folder: Path) -> None:
    """Call ``check`` with one input after another, each time with an empty folder."""
    few, many = CASES[kind]

    def case(data: st.DataObject) -> None:
        shutil.rmtree(folder / "case", ignore_errors=True)
        (folder / "case").mkdir()
        check(data, folder / "case")

    count = few if quick else int(os.environ.get("FUZZ_CASES", many))
    phases = [Phase.generate, Phase.shrink]
    all_checks = [*HealthCheck]
    limits = settings(
        max_examples=count, database=None, derandomize=quick, phases=phases, suppress_health_check=all_checks
    )
    run = limits(given(st.data())(case))
    (run if quick else seed(int(os.environ.get("FUZZ_SEED", 0)))(run))()


def answered(result: Ended, names: Sequence[str] = ()) -> None:
    """The call ended as any call may, and a refusal mentions one of ``names``."""
    note(f"$ trainer.py {shell_command(result.argv)}\n{result.out[-3000:]}{result.err[-3000:]}-> {result.status}")
    assert [*complaints(result, names)] == []


def contents(folder: Path) -> dict[str, str]:
    """Digests of every file, apart from locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# -- what a new process does first -------------------------------------------------------------------------------------


def with_modules() -> None:
    """Modules of the folder of the call can be imported by their names, in workers too."""
    sys.path.insert(0, os.getcwd())
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)


def without_ray() -> None:
    """Searches end before Ray starts, which takes ten seconds."""
    sys.modules["ray"] = None  # type: ignore[assignment]


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """All that a run imports, once for all forks."""
    import matplotlib.backends.backend_agg  # noqa: F401
    import PIL.Image
    import tensorboard.plugins.hparams.api_pb2  # noqa: F401

    import envs.cartpole
    import envs.procmaze
    import envs.registration
    import envs.synthetic  # noqa: F401
    from models.registry import agent_class, family, implementations

    PIL.Image.preinit()
    for name in implementations():
        if family(name).learns_from != "evolution":
            agent_class(name)


# -- lines and files ---------------------------------------------------------------------------------------------------

SHELF = {
    "empty": b"", "text.yaml": b"lr: 0.01\n", "text.json": b'{"lr": 0.01}', "list.yaml": b"- 1\n",
    "bytes": b"\xff\xfe\x00", "bytes.yaml": b"\xff\xfe\x00", "empty.ckpt": b"", "zip.ckpt": b"PK\x03\x04",
    "empty.safetensors": b"", "bytes.safetensors": b"\xff" * 64, "space.yaml": b"lr: {uniform: [0.1, 0.2]}\n",
    "metrics.csv": b"epoch,env_steps,seed\n",
}  # fmt: skip


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder of things that paths may name."""
    (tmp_path / "shelf" / "folder" / "version_0").mkdir(parents=True)
    for name, content in SHELF.items():
        (tmp_path / "shelf" / name).write_bytes(content)
    (tmp_path / "shelf" / "dangling").symlink_to("nowhere")
    (tmp_path / "shelf" / "round").symlink_to("round")
    return tmp_path / "shelf"


@QUICK
def test_every_command_line_ends_in_an_answer(quick: bool, shelf: Path, tmp_path: Path) -> None:
    """What is accepted is also run, apart from the quick suite."""
    listing = contents(shelf)

    def check(data: st.DataObject, folder: Path) -> None:
        argv, names = data.draw(inputs.lines(shelf))
        read = call(argv, folder / "read", parse_only=True, cpu=4)
        answered(read, [*names, *argv, "checkpoint"] if names else ())
        if not quick and read.accepted and read.out.endswith("READY\n"):
            words = [
                word.removeprefix("--") for word in (*names, *argv, "module", "checkpoint", "search_space") if word
            ]
            done = call(inputs.shortened(argv), folder / "run", setup_hooks=(without_ray,))
            answered(done, words if names else ())
        assert contents(shelf) == listing

    tried("lines", quick, check, tmp_path)


@QUICK
def test_every_settings_file_ends_in_an_answer(quick: bool, tmp_path: Path) -> None:
    """What is accepted is also run now and then, apart from the quick suite."""

    def check(data: st.DataObject, folder: Path) -> None:
        name, content, argv, names = data.draw(inputs.settings_files())
        (folder / name).write_bytes(content)
        (folder / "payload.py").write_text(PAYLOAD)
        read = call(argv, folder, parse_only=True, cpu=4, setup_hooks=(with_modules,))
        answered(read, names)
        if not quick and read.accepted and read.out.endswith("READY\n") and data.draw(st.integers(0, 4)) == 0:
            answered(call(inputs.shortened(argv), folder, setup_hooks=(with_modules, without_ray)), names)
        assert not (folder / "EXECUTED").exists()

    tried("files", quick, check, tmp_path)


# -- checkpoints and synthetic environments ----------------------------------------------------------------------------

_EACH = {"eval_every": 1, "checkpoint_every": 1}
_SEARCH = {"generations": 2, "eval_every": 1}
# Name -> settings of a run of two epochs, and those of one that is an epoch longer.
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "UDRL": (_EACH | {"epochs": 2}, {"epochs": 3}),
    "two UDRL": (_EACH | {"epochs": 2, "num_seeds": 2}, {"epochs": 3}),
    "RCP-A": (_EACH | {"implementation": "RCP-A", "epochs": 2}, {"epochs": 3}),
    "CPG": (_EACH | {"implementation": "CPG", "max_episodes": 6}, {"max_episodes": 9}),
    "AAC": (_EACH | {"implementation": "AAC", "max_episodes": 6}, {"max_episodes": 9}),
    "DDQN": (_EACH | {"implementation": "DDQN", "epochs": 2}, {"epochs": 3}),
    "ER": ({"implementation": "ER", "checkpoint_every": 1}, {"total_steps": 60}),
    "Gaussian": ({"implementation": "GaussianLatent", "num_features": 3, "checkpoint_every": 1}, {"total_steps": 60}),
    "bandit": (_SEARCH | {"implementation": "SE", "proxy": "bandit"}, {"generations": 3}),
    "mdp": (_SEARCH | {"implementation": "SE", "proxy": "mdp"}, {"generations": 3}),
    "reward": (_SEARCH | {"implementation": "RN", "proxy": "reward"}, {"generations": 3}),
}  # fmt: skip
PROXIES = ["bandit", "mdp", "reward"]
_CLOCK = re.compile(r"^.*(: \S*(ckpt|safetensors)$|steps/s).*$|[\d.]+ seconds.*", re.MULTILINE)


class Sound:
    """A run of two epochs in ``folder``, and what commands make of its last checkpoint or of its learned environment:
    the measure of what they make of damaged ones."""

    def __init__(self, name: str, folder: Path):
        self.folder = folder
        self.settings, self.longer = RUNS[name]
        self.is_search = name in PROXIES
        result = call(self._flags(), folder, cpu=60, wall=900)
        assert result.accepted, result
        self.run = run_folder(folder / "exp_dir")
        self.files = [self.run / "checkpoints" / "last.ckpt", *self.run.glob("proxy.safetensors")]
        self._expected: dict[tuple[str, str], object] = {}

    def _flags(self, **overrides: object) -> list[str]:
        return words_of(small(str(self.settings.get("implementation", "UDRL"))) | self.settings | overrides)

    def prepare(self, folder: Path, file: Path, mode: str, data: bytes) -> list[str]:
        """Lay ``file`` with that content into ``folder``. Returns the command line that uses it."""
        folder.mkdir(parents=True)
        (folder / "payload.py").write_text(PAYLOAD)
        if mode == "resume":
            shutil.copytree(self.folder / "exp_dir", folder / "exp_dir")
            (folder / file.relative_to(self.folder)).write_bytes(data)
            return [*self._flags(**self.longer), "--resume"]
        (folder / f"damaged{file.suffix}").write_bytes(data)
        if mode == "reload":
            return [*self._flags(), "--reload", "damaged.ckpt"]
        few = ["--num_agents", "2", "--no_real_baseline"] if self.is_search else ["--no_record"]
        return ["--eval_agent", f"damaged{file.suffix}", "--num_eval_episodes", "3", *few]

    def differences(self, file: Path, mode: str, result: Ended, folder: Path) -> list[str]:
        """What differs from the numbers that the sound file gives."""
        key = (file.name, mode)
        if key not in self._expected:
            place = self.folder.parent / f"{self.folder.name}-{file.name}-{mode}"
            intact = call(self.prepare(place, file, mode, file.read_bytes()), place, cpu=60, wall=900)
            assert intact.accepted, intact
            self._expected[key] = self._numbers(mode, intact, place)
        return [*different(self._expected[key], self._numbers(mode, result, folder))]

    @staticmethod
    def _numbers(mode: str, result: Ended, folder: Path) -> object:
        """What was printed, apart from paths and times, or all that the run has learned."""
        if mode == "eval_agent":
            rows = [re.sub(r" +[\d.]+$", "", line) if re.match("synthetic |real |reward network ", line) else line
                    for line in result.out.splitlines()]  # fmt: skip
            return _CLOCK.sub("", "\n".join(rows))
        run = run_folder(folder / "exp_dir")
        values: dict[str, Any] = {tag: torch.tensor(np.array(column)) for tag, column in learned(run).items()}
        for path in sorted(run.glob("checkpoints/*.ckpt")):
            content = torch.load(path, weights_only=True)
            del content["understudy"]["settings"]
            values |= {
                f"{path.name} {part}": content[part] for part in ("state_dict", "optimizer_states", "understudy")
            }
        return values


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Sound]:
    made: dict[str, Sound] = {}

    def of(name: str) -> Sound:
        if name not in made:
            made[name] = Sound(name, tmp_path_factory.mktemp("sound") / name.replace(" ", "-"))
        return made[name]

    return of


def as_sound(sound: Sound, file: Path, mode: str, data: bytes, sealed: bool, folder: Path) -> None:
    """A file with that content is refused, and nothing changed, or accepted; ``sealed``, with the sound one's
    numbers."""
    argv = sound.prepare(folder, file, mode, data)
    old_contents = contents(folder)
    result = call(argv, folder, setup_hooks=(with_modules,))
    answered(result, ["checkpoint", f"damaged{file.suffix}", "last.ckpt", "proxy", "gamename", "module"])
    assert not (folder / "EXECUTED").exists(), "the file had code executed"
    if sealed:
        assert not result.interrupted, "took longer than the sound one"
        if result.accepted:
            assert sound.differences(file, mode, result, folder) == []
    if sealed and result.status == 2 or file.suffix == ".safetensors":
        assert contents(folder) == old_contents


@QUICK
def test_a_damaged_checkpoint_is_refused_or_gives_the_sound_numbers(
    quick: bool, sound: Callable[[str], Sound], tmp_path: Path
) -> None:
    def check(data: st.DataObject, folder: Path) -> None:
        run = sound("UDRL" if quick else data.draw(st.sampled_from([name for name in RUNS if name not in PROXIES[1:]])))
        file = run.files[0]
        changed, sealed = data.draw(inputs.checkpoints(Content(file.read_bytes())))
        for mode in ("eval_agent", "resume") if quick or run.is_search else ("eval_agent", "reload", "resume"):
            as_sound(run, file, mode, changed, sealed, folder / mode)

    tried("checkpoints", quick, check, tmp_path)


@QUICK
def test_a_damaged_synthetic_environment_is_refused_or_gives_the_sound_numbers(
    quick: bool, sound: Callable[[str], Sound], tmp_path: Path
) -> None:
    def check(data: st.DataObject, folder: Path) -> None:
        search = sound("bandit" if quick else data.draw(st.sampled_from(PROXIES)))
        file = search.files[1]
        changed, sealed = data.draw(inputs.proxies(Content(file.read_bytes())))
        as_sound(search, file, "eval_agent", changed, sealed, folder / "run")

    tried("proxies", quick, check, tmp_path)


@QUICK
def test_every_faulty_environment_ends_in_an_answer(quick: bool, tmp_path: Path) -> None:
    def check(data: st.DataObject, folder: Path) -> None:
        module, fault, argv = data.draw(inputs.environments())
        (folder / "faulty.py").write_text(module)
        result = call(argv, folder, setup_hooks=(with_modules,), wall=30 if "sleep" in fault else 90)
        answered(result, ["faulty", "environment", "module", "time_limit", "num_workers", "record"])

    tried("environments", quick, check, tmp_path)


# -- what counts as no answer ------------------------------------------------------------------------------------------


def _ignores_ctrl_c() -> None:
    while True:
        try:
            while True:
                pass
        except KeyboardInterrupt:
            pass


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "exits": (lambda: os._exit(3), "status 3"),
    "raises": (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    "crashes": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was killed: SIGSEGV"),
    "hangs": (lambda: [None for _ in iter(int, 1)], "too long"),
    "ignores Ctrl-C": (_ignores_ctrl_c, "took too long"),
    "writes": (lambda: Path("../elsewhere").mkdir(), "changed what is not its own"),
    "says nothing": (lambda: 2, "0 lines of error"),
    "says much": (lambda: sys.stderr.write(f"error: {'x' * 1000}\n") and 2, "a line of 1007 characters"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main, complaint = FAULTS[fault]
    monkeypatch.setattr(trainer, "main", lambda argv: main())
    monkeypatch.setattr("sandbox.CTRL_C_AGAIN", 0.2)
    monkeypatch.setattr("sandbox.GRACE", 0.5)
    outcome = call([], tmp_path / "case", cpu=0.2, parse_only=True)
    assert any(complaint in text for text in complaints(outcome))
    assert not (tmp_path / "elsewhere").exists()
