"""Fuzzing of command lines and files: every call ends with status 0, 2 or 130 and at most one line of error. The quick
suite tries a few inputs of each kind, `make fuzz` thousands: FUZZ_CASES is their number, FUZZ_SEED the seed. Hypothesis
shrinks failures."""

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

import inputs
from control.cli.parse import parse
from helpers import run_folder
from inputs import PAYLOAD, Content, small, words_of
from sandbox import Ended, call, complaints, shell_command

pytestmark = pytest.mark.xdist_group("fuzz")  # all cases start from the same few runs

CASES = {"lines": (20, 5000), "files": (10, 2000), "checkpoints": (4, 500), "proxies": (6, 500)}
QUICK = pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.fuzz)], ids=["few", "many"])


def try_inputs(kind: str, quick: bool, check: Callable[[st.DataObject, Path], None], folder: Path) -> None:
    """Call ``check`` with one input after another, each time with an empty folder."""
    quick_count, full_count = CASES[kind]

    def case(data: st.DataObject) -> None:
        shutil.rmtree(folder / "case", ignore_errors=True)
        (folder / "case").mkdir()
        check(data, folder / "case")

    count = quick_count if quick else int(os.environ.get("FUZZ_CASES", full_count))
    phases = [Phase.generate, Phase.shrink]
    limits: dict[str, Any] = {"phases": phases, "suppress_health_check": [*HealthCheck]}
    run = settings(max_examples=count, database=None, derandomize=quick, **limits)(given(st.data())(case))
    (run if quick else seed(int(os.environ.get("FUZZ_SEED", 0)))(run))()


def check_answer(result: Ended, names: Sequence[str] = ()) -> None:
    """The call ended properly, and an error mentions one of ``names``."""
    note(f"$ trainer.py {shell_command(result.argv)}\n{result.out[-3000:]}{result.err[-3000:]}-> {result.status}")
    assert [*complaints(result, names)] == []


def contents(folder: Path) -> dict[str, str]:
    """Digests of every file, apart from locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# -- set-up of processes -----------------------------------------------------------------------------------------------


def with_modules() -> None:
    """Make modules of the working directory importable, in workers too."""
    sys.path.insert(0, os.getcwd())
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)


def without_ray() -> None:
    """Searches end before Ray starts, which takes ten seconds."""
    sys.modules["ray"] = None  # type: ignore[assignment]


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import the modules of a run once for all forks."""
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
    """A folder of files for path flags."""
    (tmp_path / "shelf" / "folder" / "version_0").mkdir(parents=True)
    for name, content in SHELF.items():
        (tmp_path / "shelf" / name).write_bytes(content)
    (tmp_path / "shelf" / "dangling").symlink_to("nowhere")
    (tmp_path / "shelf" / "round").symlink_to("round")
    return tmp_path / "shelf"


@QUICK
def test_command_lines(quick: bool, shelf: Path, tmp_path: Path) -> None:
    """The full suite also runs accepted command lines."""
    listing = contents(shelf)

    def check(data: st.DataObject, folder: Path) -> None:
        argv, names = data.draw(inputs.lines(shelf))
        mentioned = [
            *names,
            *(word.removeprefix("--").partition("=")[0] for word in argv if word),
            "module",
            "checkpoint",
        ]
        read = call(argv, folder / "read", parse_only=True, cpu=4)
        check_answer(read, mentioned if names else ())
        if not quick and read.accepted and read.out.endswith("READY\n"):
            done = call(inputs.shortened(argv), folder / "run", setup_hooks=(without_ray,))
            check_answer(done, [*mentioned, "search_space"] if names else ())
        assert contents(shelf) == listing

    try_inputs("lines", quick, check, tmp_path)


@QUICK
def test_settings_files(quick: bool, tmp_path: Path) -> None:
    """The full suite also runs some accepted files."""

    def check(data: st.DataObject, folder: Path) -> None:
        name, content, argv, names = data.draw(inputs.settings_files())
        (folder / name).write_bytes(content)
        (folder / "payload.py").write_text(PAYLOAD)
        read = call(argv, folder, parse_only=True, cpu=4, setup_hooks=(with_modules,))
        check_answer(read, names)
        if not quick and read.accepted and read.out.endswith("READY\n") and data.draw(st.integers(0, 4)) == 0:
            with contextlib.chdir(folder):
                words = inputs.shortened(argv, parse(argv).run.implementation)
            check_answer(call(words, folder, setup_hooks=(with_modules, without_ray)), names)
        assert not (folder / "EXECUTED").exists()

    try_inputs("files", quick, check, tmp_path)


# -- checkpoints and synthetic environments ----------------------------------------------------------------------------

_EVERY_EPOCH = {"eval_every": 1, "checkpoint_every": 1}
_SEARCH = {"generations": 2, "eval_every": 1}
# Name -> settings of a run of two epochs, and of a run of three.
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "UDRL": (_EVERY_EPOCH | {"epochs": 2}, {"epochs": 3}),
    "CPG": (_EVERY_EPOCH | {"implementation": "CPG", "max_episodes": 6}, {"max_episodes": 9}),
    "DDQN": (_EVERY_EPOCH | {"implementation": "DDQN", "epochs": 2}, {"epochs": 3}),
    "ER": ({"implementation": "ER", "checkpoint_every": 1}, {"total_steps": 60}),
    "bandit": (_SEARCH | {"implementation": "SE", "proxy": "bandit"}, {"generations": 3}),
    "mdp": (_SEARCH | {"implementation": "SE", "proxy": "mdp"}, {"generations": 3}),
    "reward": (_SEARCH | {"implementation": "RN", "proxy": "reward"}, {"generations": 3}),
}  # fmt: skip
PROXIES = ["bandit", "mdp", "reward"]


class IntactRun:
    """A run of two epochs in ``folder``, whose files are damaged."""

    def __init__(self, name: str, folder: Path):
        self.folder = folder
        self.settings, self.longer = RUNS[name]
        self.is_search = name in PROXIES
        result = call(self._flags(), folder, cpu=900, wall=1800)  # also compiles its functions, if no other test has
        assert result.accepted, result
        self.run = run_folder(folder / "exp_dir")
        self.files = [self.run / "checkpoints" / "last.ckpt", *self.run.glob("proxy.safetensors")]

    def _flags(self, **overrides: object) -> list[str]:
        return words_of(small(str(self.settings.get("implementation", "UDRL"))) | self.settings | overrides)

    def prepare(self, folder: Path, file: Path, mode: str, data: bytes) -> list[str]:
        """Write ``data`` as ``file`` into ``folder``. Returns the command line that uses it."""
        folder.mkdir(parents=True)
        (folder / "payload.py").write_text(PAYLOAD)
        if mode == "resume":
            shutil.copytree(self.folder / "exp_dir", folder / "exp_dir")
            (folder / file.relative_to(self.folder)).write_bytes(data)
            return [*self._flags(**self.longer), "--resume"]
        (folder / f"damaged{file.suffix}").write_bytes(data)
        if mode == "reload":
            return [*self._flags(), "--reload", "damaged.ckpt"]
        short_flags = ["--num_agents", "2", "--no_real_baseline"] if self.is_search else ["--no_record"]
        return ["--eval_agent", f"damaged{file.suffix}", "--num_eval_episodes", "3", *short_flags]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], IntactRun]:
    runs: dict[str, IntactRun] = {}

    def get(name: str) -> IntactRun:
        if name not in runs:
            runs[name] = IntactRun(name, tmp_path_factory.mktemp("intact") / name.replace(" ", "-"))
        return runs[name]

    return get


def check_damaged_file(intact: IntactRun, file: Path, mode: str, data: bytes, sealed: bool, folder: Path) -> None:
    """The command refuses a file with content ``data`` and changes nothing, or accepts it. A ``sealed`` file is damaged
    in its bytes."""
    argv = intact.prepare(folder, file, mode, data)
    old_contents = contents(folder)
    result = call(argv, folder, setup_hooks=(with_modules,))
    check_answer(result, ["checkpoint", f"damaged{file.suffix}", "last.ckpt", "proxy", "gamename", "module"])
    assert not (folder / "EXECUTED").exists(), "the file had code executed"
    if sealed:
        assert not result.interrupted, "took longer than the intact one"
    if sealed and result.status == 2 or file.suffix == ".safetensors":
        assert contents(folder) == old_contents


@QUICK
def test_damaged_checkpoints(quick: bool, intact: Callable[[str], IntactRun], tmp_path: Path) -> None:
    def check(data: st.DataObject, folder: Path) -> None:
        run = intact(
            "UDRL" if quick else data.draw(st.sampled_from([name for name in RUNS if name not in PROXIES[1:]]))
        )
        file = run.files[0]
        changed, sealed = data.draw(inputs.checkpoints(Content(file.read_bytes())))
        for mode in ("eval_agent", "resume") if quick or run.is_search else ("eval_agent", "reload", "resume"):
            check_damaged_file(run, file, mode, changed, sealed, folder / mode)

    try_inputs("checkpoints", quick, check, tmp_path)


@QUICK
def test_damaged_proxies(quick: bool, intact: Callable[[str], IntactRun], tmp_path: Path) -> None:
    def check(data: st.DataObject, folder: Path) -> None:
        search = intact("bandit" if quick else data.draw(st.sampled_from(PROXIES)))
        file = search.files[1]
        changed, sealed = data.draw(inputs.proxies(Content(file.read_bytes())))
        check_damaged_file(search, file, "eval_agent", changed, sealed, folder / "run")

    try_inputs("proxies", quick, check, tmp_path)
