"""The command line: exit status, help and error messages."""

import errno
import re

import pytest

import trainer
from control.cli import parse as config
from control.cli.settings import as_dict
from envs.base import EnvironmentFault
from helpers import output_of
from models.registry import family, implementations
from models.settings import SettingError

COMMAND = "  python trainer.py "


def test_parsing_imports_nothing_heavy() -> None:
    code = """
import contextlib, sys, trainer
from control.reports import curves
from models.registry import implementations
lines = [["--help"], ["--seed", "-1"]]
for name in implementations():
    lines += [["--implementation", name, *words] for words in ([], ["--help"])]
for words in lines:
    with contextlib.suppress(SystemExit, trainer.config.SettingError):
        trainer.config.parse(words)
heavy = {"torch", "pytorch_lightning", "gymnasium", "matplotlib", "ray", "scipy", "tensorboard"}
print("HEAVY", sorted(heavy & set(sys.modules)))
"""
    assert output_of(code).endswith("HEAVY []\n")


@pytest.mark.parametrize("name", implementations())
def test_help_all_lists_every_setting(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        trainer.main(["--implementation", name, "--help", "all"])
    output = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    settings = config.parse(["--implementation", name])
    for field in as_dict(settings):
        assert f"--{field}" in output
    assert f"hyperparameters of {name if settings.proxy is None else settings.run.agent}:" in output
    if rate := getattr(settings.agent, "lr", None):
        description = "Adam's learning rate" if family(name).package != "models.agents.tabular" else "alpha, the share"
        line = rf"{description} [\w ()]*(\[\w+\] )?\(default: {rate}; allowed: number, greater than 0"
        assert re.search(line, output)
    assert "lunarlander-sparse" in output and all(f" {other}" in output for other in implementations())


@pytest.mark.parametrize(("implementation", "max_count"), [("UDRL", 61), ("SE", 90)])
def test_help_lists_settings_with_an_effect(
    implementation: str, max_count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        trainer.main(["--implementation", implementation, "--help"])
    flags = re.findall(r"^  --(\w+) (?!--help)", capsys.readouterr().out, re.MULTILINE)
    assert 40 < len(flags) <= max_count and "lr" in flags
    assert not {"plot_out", "num_samples", "film_out", "icm_lr", "value_lr"} & set(flags)


def test_first_help_fits_two_screens(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        trainer.main(["--help"])
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 80
    assert output.count("\n") <= 64 and "--help all" in output and "--eval_agent cartpole-bandit" in output
    assert all(f" {name}" in output for name in implementations())


def test_help_of_an_implementation_a_mode_or_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    def flags(*words: str) -> list[str]:
        with pytest.raises(SystemExit) as end:
            trainer.main(words)
        assert end.value.code == 0
        return re.findall(r"^  --([\w.]+) ", capsys.readouterr().out, re.MULTILINE)

    assert flags("--help", "ppo") == flags("--implementation", "PPO", "--help") != flags("--help", "sac")
    assert flags("--plot", "--help") == ["plot", "plot_out", "plot_format", "plot_theme", "plot_log"]
    with pytest.raises(SystemExit):
        trainer.main(["--plot", "--help"])
    page = capsys.readouterr().out
    assert page.startswith("usage: python trainer.py --plot TEXT ... [--name value ...]")  # a folder may have commas
    assert "--plot_format TEXT,... " in page
    learn_flags = flags("--learn", "--help")
    assert learn_flags[0] == "learn" and "implementation" in learn_flags and "gamename" not in learn_flags
    assert flags("--eval_agent", "--help")[:2] == ["eval_agent", "num_eval_episodes"]
    assert "resume_search" in flags("--use_tune", "--help") and "num_samples" in flags("--help", "trials")
    assert flags("--help", "gamma")[0] == "discount"
    assert "clip_range" in flags("--help", "clip") and flags("--implementation", "CPG", "--help", "gamma") == [
        "discount"
    ]
    for word, similar in (("Discont", "discount"), ("PP0", "PPO")):
        assert trainer.main(["--help", word]) == 2
        hint = f"did you mean '{similar}'?; allowed: all, or a word"
        assert capsys.readouterr().err == f"error: help is '{word}', which no setting contains; {hint}\n"


# Errors and their messages; None for a bug, which keeps its traceback.
ERRORS: list[tuple[BaseException, str | None]] = [
    (SettingError("lr is\n-1"), "error: lr is -1\n"),
    (SettingError("lr is " + "9" * 999 + "; max"), "error: lr is " + "9" * 150 + "..." + "9" * 99 + "; max\n"),
    (SettingError("names: " + "a " * 5000), "error: names: " + "a " * 371 + "a..."),
    (EnvironmentFault("\x1b[31mé\x00\u202e"), "error: \\x1b[31mé\\x00\\u202e\n"),
    (OSError(errno.ENOSPC, "No space", "/x/last.ckpt"), "error: disk full at '/x/last.ckpt'; make room"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "/x"), "error: cannot use '/x': File name too long\n"),
    (ModuleNotFoundError("no", name="ray.tune"), "error: the Python module 'ray' is not installed"),
    (KeyboardInterrupt(), "interrupted\n"),
    (RuntimeError("shape"), None), (ModuleNotFoundError("no", name="control.nothing"), None), (KeyError("x"), None),
]  # fmt: skip


def test_bare_command_offers_five_commands_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer, "run", pytest.fail)
    assert trainer.main([]) == 0
    output = capsys.readouterr().out
    lines = output.replace("\\\n", "").splitlines()  # as a shell reads them
    commands = [line.removeprefix(COMMAND) for line in lines if line.startswith(COMMAND)]
    assert len(commands) == 5 and max(map(len, output.splitlines())) <= 80
    for command in commands:
        config.parse(command.split())


@pytest.mark.parametrize(("error", "line"), ERRORS)
def test_user_errors_are_one_line(
    error: BaseException, line: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(settings: object) -> int:
        raise error

    monkeypatch.setattr(trainer, "run", fail)
    if line is None:
        with pytest.raises(type(error)):
            trainer.main(["--seed", "1"])
        return
    assert trainer.main(["--seed", "1"]) == (130 if line == "interrupted\n" else 2)
    error_output = capsys.readouterr().err
    assert error_output.startswith(line) and error_output.count("\n") == 1
