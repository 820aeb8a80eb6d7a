"""`--learn`: a learned environment and a learned reward for a task, judged; and rewards made from a policy."""

import contextlib
import functools
import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from pytorch_lightning.trainer.states import TrainerFn
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

import trainer
import understudy
from control.evolution.inner_loop import InnerLoop
from control.evolution.teachers import TeacherEpisodes, cloned_proxy, teacher
from control.learn import agents as learn_agents
from control.learn import command as learn_command
from control.learn import task as learn_task
from control.learn import teacher as learn_teacher
from control.lightning.callbacks import StopWhenFlat
from control.reports.learned import _draw_race
from control.reports.stages import conclusion, is_clearly_sooner
from control.reports.tables import Score
from control.reports.tags import GREEDY, TRAINING
from control.reports.verdict import Baselines, _play
from control.storage.run_dir import find_proxy
from envs.make import make_environment, proxy_factory
from helpers import load_events
from models.proxies import files
from models.proxies.synthetic.networks import unscale_states
from models.settings import SettingError
from models.streams import Streams


class Corridor(gym.Env):
    """Cells 0 to 5. Action 1 goes right, action 0 left; the right end pays 1 and ends the episode."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = gym.spaces.Discrete(6), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.cell = 2
        return self.cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        return self.cell, float(self.cell == 5), self.cell == 5, False, {}


class Shift(Corridor):
    """Never reaches the end, but may be ``truncated`` or ``terminated`` after 40 steps, or after fewer, "leaves"."""

    def __init__(self, ends: str) -> None:
        super().__init__()
        self.ends, self.age = ends, 0

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        self.age += 1
        has_left = self.ends == "leaves" and self.np_random.random() < 0.1
        return (
            2,
            0.0,
            self.ends == "terminated" and self.age >= 40,
            self.ends == "truncated" and self.age >= 40 or has_left,
            {},
        )

    def reset(self, **options: Any) -> tuple[int, dict]:
        self.age = 0
        return super().reset(**options)


class Metres(Corridor):
    """Observes metres, but states the bounds of kilometres."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 1, (1,))

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        return np.float32([1000.0]), 0.0, False, False, {}

    def reset(self, **options: Any) -> tuple[Any, dict]:
        return np.float32([0.0]), {}


class Unseeded(Metres):
    """Begins anywhere, whatever the seed."""

    def reset(self, **options: Any) -> tuple[Any, dict]:
        return np.random.default_rng().random(1, np.float32), {}


class Noise(Corridor):
    """Pays random rewards, whatever the agent does."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        cell, _, end, _, info = super().step(action)
        return cell, float(self.np_random.normal()), end, False, info


class Order(Corridor):
    """Orders 1 to 40 goods at once; 14 are best."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = gym.spaces.Discrete(6), gym.spaces.Discrete(40, start=1)

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict]:
        return 0, -abs(float(action) - 14), False, False, {}


class Orders(Order):
    """Orders goods of two kinds; [2, 1] are best."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = gym.spaces.Discrete(6), gym.spaces.MultiDiscrete([5, 7])

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict]:
        return 0, -float(np.abs(action - [2, 1]).sum()), False, False, {}


for _name in ("Corridor", "Metres", "Noise", "Unseeded", "Order", "Orders"):
    gym.register(f"{_name}-v0", f"test_learn:{_name}", max_episode_steps=12)
gym.register("Endless-v0", "test_learn:Corridor")


class Lottery(Corridor):
    """Ends after a step, and pays 1 in one of 8 episodes, whatever the action is."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        return self.cell, float(self.np_random.random() < 1 / 8), True, False, {}


gym.register("Lottery-v0", "test_learn:Lottery")


def right(obs: np.ndarray) -> np.ndarray:
    return np.ones(len(obs), int)


def left(obs: np.ndarray) -> np.ndarray:
    return np.zeros(len(obs), int)


def fourteen(obs: np.ndarray) -> np.ndarray:
    return np.full(len(obs), 14)


def two_and_one(obs: np.ndarray) -> np.ndarray:
    return np.tile([2, 1], (len(obs), 1))


def nine(obs: np.ndarray) -> np.ndarray:
    return np.full((len(obs), 2), 9)


def learned(tmp_path: Path, game: str, policy: str, *extra_flags: str) -> tuple[int, Path]:
    """Run ``--learn`` with few agents. Return its exit status and the newest folder."""
    words = ["--learn", game, "--teacher", f"test_learn:{policy}", "--logdir", str(tmp_path), "--exam_agents", "2"]
    status = trainer.main([*words, "--exam_steps", "1500", "--race_agents", "2", "--race_steps", "256", *extra_flags])
    (folder,) = tmp_path.glob("*/debug/learned/seed_25/version_0")
    return status, folder


@pytest.fixture
def one_learner(short_stages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    learners = property(lambda task: ("QLearning",) if task.spaces.one_hot else ("DDQN",))
    monkeypatch.setattr(learn_task.Task, "learners", learners)


@pytest.mark.usefixtures("one_learner")
def test_all_stages_run_on_cells_and_a_resumed_command_repeats_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, folder = learned(tmp_path, "test_learn:Corridor-v0", "right")
    assert status == 0
    results = json.loads((folder / learn_command.RESULTS).read_text())
    assert [*results] == ["settings", *learn_command.STAGES]
    assert results["teacher"]["score"]["mean"] == results["bandit"]["score"]["mean"] == 1.0
    assert results["exam"]["agents"]["QLearning"]["mean"] == 1.0
    printed = capsys.readouterr().out
    assert "of the way from random play" in printed and "page.html" in printed
    assert find_proxy(folder) == folder / learn_command.BANDIT  # so `--eval_agent` takes the folder
    bandit, reward = files.load(folder / learn_command.BANDIT), understudy.load(folder / learn_command.REWARD)
    assert "states.table" not in bandit.networks.named_tensors(bandit.parameters)
    env = gym.make("understudy/Synthetic-v0", proxy=folder / learn_command.BANDIT)
    cells = [env.reset(seed=seed)[0].argmax() for seed in range(60)]
    assert {*cells} == {*range(6)}
    wrapped = understudy.RewardWrapper(gym.make("Corridor-v0"), reward)
    wrapped.reset(seed=0)
    assert wrapped.step(1)[1] > wrapped.step(0)[1]  # going right is worth more, before the end pays
    assert results["race"]["real_steps"] == 3 * 2 * 256  # two agents with the learned reward, four with the task's
    page = (folder / "page.html").read_text()
    steps = sum(result.get("real_steps", 0) for result in results.values())
    assert f">{steps:,}</td>" in page and "trained only on the bandit come " in page
    assert " took " in printed and " of the task" in printed  # the price of the bandit
    count = sum(score["count"] for score in results["exam"]["real"].values())
    assert f"new agents train on the bandit, and play the task; {count} others train on the task, to compare" in page
    events = load_events(folder)
    assert [scalar.value for scalar in events.Scalars("eval/return_greedy")] == [1.0]
    assert {*events.Tags()["scalars"]} - {"learn/clone_return"} == {"eval/return_greedy"}
    assert events.Tags()["images"] == ["summary/returns"]
    (text,) = events.Tensors("settings/text_summary")
    assert "| **exam_agents** | `" in text.tensor_proto.string_val[0].decode()
    session = HParamsPluginData.FromString(
        events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    ).session_start_info
    assert session.group_name.startswith("learn 25 v0 debug: ")
    assert session.hparams["seed"].number_value == 25
    assert session.hparams["set.exam_steps"].number_value == results["exam"]["steps"]
    (text,) = events.Tensors("conclusion/text_summary")
    conclusion = text.tensor_proto.string_val[0].decode()
    assert all(f"- **{stage}**: {results[stage]['text']}" in conclusion for stage in learn_command.STAGES)
    assert "QLearning on the bandit" in conclusion and "QLearning on the task" in conclusion
    for reward in ("learned", "task"):
        assert load_events(folder / f"race_{reward}").Scalars("race/return_mean")[-1].step == 256
    assert "of the way from random play" in page and page.count("data:image/svg+xml") == 2  # wide and narrow
    # A resumed command repeats no stage except the missing one.
    assert results.pop("settings")["teacher"] == "test_learn:right"
    del results["race"]
    (folder / learn_command.RESULTS).write_text(json.dumps({"settings": {"race_agents": 2}, **results}))
    assert learned(tmp_path, "test_learn:Corridor-v0", "right", "--resume") == (0, folder)
    again = learn_command.Learned(folder, True).results
    assert [*again] == [*learn_command.STAGES] and {name: again[name] for name in results} == results
    assert "nothing is left to do" not in capsys.readouterr().out
    words = ["--learn", "test_learn:Corridor-v0", "--resume", "--logdir", str(tmp_path)]
    assert trainer.main(words) == 0 and "nothing is left to do" in capsys.readouterr().out
    assert trainer.main([*words, "--race_agents", "3"]) == 2
    error = capsys.readouterr().err
    assert "race_agents is 3, but the run to resume in " in error and "version_0 has 2" in error
    for damaged in ('{"settings": {', "[1, 2]", "5", '{"probe": {}}'):
        (folder / learn_command.RESULTS).write_text(damaged)
        assert trainer.main(words) == 2 and "cannot be read" in capsys.readouterr().err
        with pytest.raises(SettingError, match=r"^'.*exam.json' cannot be read \((?!None)"):
            _ = learn_command.Learned(folder, True).results


@pytest.mark.usefixtures("short_stages")
def test_a_resumed_exam_repeats_no_finished_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn_task.Task, "learners", ("QLearning", "SARSA"))
    train_and_test, parts = learn_agents._train_and_test, list[str]()

    def interrupted(task: Any, proxy: Any, name: str, steps: int, on_task: bool, watch: None) -> dict[str, Any]:
        parts.append(f"{name} on the {'task' if on_task else 'bandit'}")
        if len(parts) == 2:
            raise KeyboardInterrupt
        return train_and_test(task, proxy, name, steps, on_task, watch)

    monkeypatch.setattr(learn_agents, "_train_and_test", interrupted)
    words = ("test_learn:Corridor-v0", "right", "--only", "exam")
    assert learned(tmp_path, *words)[0] == 130
    status, folder = learned(tmp_path, *words, "--resume")
    kinds = [f"{name} on the {place}" for place in ("bandit", "task") for name in ("QLearning", "SARSA")]
    assert status == 0 and parts == [kinds[0], kinds[1], *kinds[1:]]
    resumed = json.loads((folder / learn_command.RESULTS).read_text())["exam"]
    assert not [*folder.glob("*_parts.json")]
    assert resumed["cpu_seconds"] >= 0 and resumed["text"].startswith("QLearning 1.0")
    status, folder = learned(tmp_path / "uninterrupted", *words)
    uninterrupted = json.loads((folder / learn_command.RESULTS).read_text())["exam"]
    results = [{name: exam[name] for name in ("agents", "real", "real_steps")} for exam in (resumed, uninterrupted)]
    assert status == 0 and results[0] == results[1]


@pytest.mark.usefixtures("short_stages")
def test_agents_that_learn_too_little_on_a_good_clone_train_again_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns = {("DDQN", 1): 0.5, ("DDQN", 4): 1.0, ("PPO", 1): 0.7, ("PPO", 4): 0.6, ("QLearning", 1): 1.0}
    trainings = list[tuple[str, int]]()

    def train_and_test(
        task: Any, proxy: files.Proxy, name: str, steps: int, on_task: bool, watch: None
    ) -> dict[str, Any]:
        trainings.append((name, steps // proxy.config.inner_steps))
        score = learn_task.Score(returns[trainings[-1]], 0.0, returns[trainings[-1]], None, 2)
        return {"score": asdict(score), "real_steps": 0}

    monkeypatch.setattr(learn_agents, "_train_and_test", train_and_test)
    monkeypatch.setattr(learn_agents, "learners_on_task", lambda task: ())
    command = ["--learn", "test_learn:Corridor-v0", "--teacher", "test_learn:right", "--only", "exam"]
    assert trainer.main([*command, "--logdir", str(tmp_path)]) == 0
    (folder,) = tmp_path.glob("*/debug/learned/seed_25/version_0")
    exam = learn_command.Learned(folder, True).results["exam"]
    assert trainings == [("DDQN", 1), ("PPO", 1), ("QLearning", 1), ("DDQN", 4), ("PPO", 4)]
    assert {name: score["mean"] for name, score in exam["agents"].items()} == {
        "DDQN": 1.0,
        "PPO": 0.7,
        "QLearning": 1.0,
    }
    bandit = files.load(folder / learn_command.BANDIT)
    assert exam["more_steps"] == {"DDQN": bandit.config.steps_in_use}
    assert bandit.config.steps_in_use == bandit.description["settings"]["deploy_steps"] == 4 * exam["steps"]
    assert f"DDQN learned more in {4 * exam['steps']:,} steps than in" in (folder / "page.html").read_text()


@pytest.mark.usefixtures("short_stages")
def test_with_continuous_actions_the_better_of_two_teachers_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_one, discounts = learn_teacher._train_one_teacher, list[float]()

    def interrupted(task: learn_task.Task, settings: Any, watch: None) -> dict[str, Any]:
        discounts.append(settings.agent.discount)
        if len(discounts) == 2:
            raise KeyboardInterrupt
        return train_one(task, settings, watch)

    monkeypatch.setattr(learn_teacher, "_train_one_teacher", interrupted)
    words = ["--learn", "pendulum", "--only", "teacher", "--teacher_steps", "1600", "--logdir", str(tmp_path)]
    assert trainer.main(words) == 130
    trainer.main([*words, "--resume"])
    assert discounts == [0.999, 0.99, 0.99], "the finished training is not repeated"
    assert re.search(r"two trainings \(-.* with discount 0.999 and -.* with discount 0.99\)", capsys.readouterr().out)
    (folder,) = tmp_path.glob("pendulum/debug/learned/seed_25/version_0")
    result = json.loads((folder / learn_command.RESULTS).read_text())["teacher"]
    best = max(result["returns"], key=result["returns"].get)
    assert trainer.load(folder / learn_teacher.TEACHER).settings.agent.discount == float(best.removeprefix("discount "))
    assert result["max_steps"] == 3200 and result["real_steps"] > 1600
    page = (folder / learn_command.PAGE).read_text()
    assert re.search(r">teacher_steps</th><td[^>]*>1600<.*largest number of steps of that agent", page)
    (address,) = re.findall(r'href="([^"]*)">Settings of the teacher', page)
    assert (folder / address).is_file() and "Versions of the programs" in page and torch.__version__ in page


@pytest.mark.usefixtures("one_learner")
@pytest.mark.parametrize(("game", "policy"), [("Corridor-v0", "left"), ("Noise-v0", "right"), ("Metres-v0", "left")])
def test_a_task_without_a_teacher_worth_cloning_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], game: str, policy: str
) -> None:
    status, folder = learned(tmp_path, f"test_learn:{game}", policy)
    assert status == 1
    failure = r"(than random play|nothing to learn): try another --teacher, in a new run.\sMean returns: "
    printed = capsys.readouterr().out
    assert re.search(failure, printed)
    assert printed.count("warning: an observation has the number 1000, outside") == (game == "Metres-v0")
    assert "became" not in (folder / learn_command.PAGE).read_text()
    assert {path.name for path in folder.iterdir()} >= {"exam.json", "page.html"}
    assert not [*folder.glob("*.safetensors")]
    count = json.loads((folder / learn_command.RESULTS).read_text())["teacher"]["score"]["count"]
    assert count == (512 if game == "Noise-v0" else 64), "noisy returns need more episodes"


def test_an_environment_without_a_seed_has_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = learned(tmp_path, "test_learn:Unseeded-v0", "left", "--only", "probe")
    printed = capsys.readouterr().out
    assert status == 0 and "warning: two instances of test_learn:Unseeded-v0 that were reset with the same" in printed
    assert "--resume" in printed.partition("next:")[2], "the command that runs the other stages"


@pytest.mark.usefixtures("one_learner")
def test_a_bandit_that_fails_its_exam_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bandit is renamed, and the stages that do not need it still run."""
    status, folder = learned(tmp_path, "test_learn:Corridor-v0", "right", "--exam_steps", "1")
    assert status == 1
    assert re.search("QLearning: agents are .*: try more --exam_steps", capsys.readouterr().out)
    assert {path.name for path in folder.glob("*.safetensors")} == {"rejected_bandit.safetensors", learn_command.REWARD}
    results = json.loads((folder / learn_command.RESULTS).read_text())
    assert results["exam"]["failed"] and results["race"]["arms"]


@pytest.mark.usefixtures("one_learner")
def test_a_task_without_time_limit_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The constant action 0 never ends an episode."""
    monkeypatch.setattr(learn_task, "TIME_LIMIT", 30)
    status, folder = learned(tmp_path, "test_learn:Endless-v0", "right", "--only", "bandit")
    results = json.loads((folder / learn_command.RESULTS).read_text())
    assert status == 0 and results["probe"]["constant"]["mean"] == 1.0
    assert files.load(folder / learn_command.BANDIT).config.test_limit == 30


@pytest.mark.parametrize(("ends", "limit"), [("truncated", 40), ("terminated", 40), ("leaves", 30), ("", 30)])
def test_the_time_limit_may_be_the_environment_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: str, limit: int
) -> None:
    """The id has no time limit, but the environment may end episodes after 40 steps."""
    monkeypatch.setattr(learn_task, "TIME_LIMIT", 30)
    monkeypatch.setattr(learn_task, "LONG", 50)
    game = f"Shift{ends}-v0"
    gym.register(game, lambda: Shift(ends))
    task = SimpleNamespace(game=game, seed=0, spaces=make_environment(game, 1, 1).spaces)
    assert learn_task._time_limit(task) == limit
    assert ("ends its episodes after 40" if limit == 40 else "shows no time limit") in capsys.readouterr().out


def test_a_policy_with_long_episodes_leaves_others_their_steps() -> None:
    always = {name: lambda obs, action=i: torch.full((len(obs),), action) for i, name in enumerate(("left", "right"))}
    with contextlib.closing(make_environment("Endless-v0", 1, 2, time_limit=100)) as real:
        returns, steps = _play(always, real, 0, 32, 400, None)
    assert (len(returns["left"]), len(returns["right"]), steps) == (2, 32, 2 * 100 + 32 * 3)


def test_a_teacher_is_trained_and_only_one_stage_runs(tmp_path: Path) -> None:
    options = {"teacher_steps": 1500, "only": "teacher", "logdir": str(tmp_path), "implementation": "A2C"}
    result = trainer.learn("cartpole", verbose=False, **options)
    assert [*result.results] == ["probe", "teacher"]
    trained_teacher = result.results["teacher"]
    assert load_events(result.folder / "teacher").Scalars("eval/return_greedy")
    assert len([*result.folder.rglob("events.out.tfevents.*")]) == 2
    assert trained_teacher["implementation"] == "A2C" and trained_teacher["real_steps"] <= 1580
    checkpoints = (result.folder / trained_teacher["run"] / "checkpoints").glob("*.ckpt")
    returns = {path: trainer.evaluate(path, learn_task.JUDGING_EPISODES, seed=25).mean for path in checkpoints}
    chosen = (result.folder / learn_command.TEACHER).read_bytes()
    assert max(returns.values()) in [mean for path, mean in returns.items() if path.read_bytes() == chosen]
    policy = teacher(str(result.folder / learn_command.TEACHER), "cartpole", make_environment("cartpole", 1, 1).spaces)
    assert policy(torch.zeros(3, 4)).shape == (3,)
    again = trainer.learn("cartpole", verbose=False, resume=True, **options)
    assert again.folder == result.folder and again.results == result.results
    assert trainer.main(["--report", str(result.folder)]) == 0
    (report,) = result.folder.rglob("report.html")
    (address,) = re.findall(r'href="(page\.html)"', report.read_text())
    assert (report.parent / address).samefile(result.folder / "page.html") and "still run" not in report.read_text()


def test_random_play_is_judged_in_as_many_episodes_as_a_noisy_teacher(tmp_path: Path) -> None:
    """The probe saw no success of random play. A teacher that has some by luck is not better."""
    settings = trainer.config.parse(["--learn", "test_learn:Lottery-v0", "--teacher", "test_learn:right"])
    spaces = make_environment(settings.run.gamename, 1, 1).spaces
    nothing = asdict(Score(0.0, 0.0, 0.0, None, 32))
    probe = {"random": nothing, "constant": nothing, "action": "0", "steps_per_second": 1e4}
    task = learn_task.Task(settings, tmp_path, spaces, {"probe": probe}, verbose=False)
    result = learn_teacher.find_teacher(task)
    returns, random_returns = Score(**result["score"]), Score(**result["random"])
    assert returns.count == random_returns.count == 512 and 0.05 < random_returns.mean < 0.2
    assert returns.exceeds(Score(**nothing)) and result["failed"]


def test_the_best_of_several_clones_is_kept_and_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clones 0, 1 and 2 return 10, 30 and 20; the teacher returns 100. In new episodes clone 1 returns 25."""

    def score(mean: float) -> Score:
        return Score(mean, 0.0, mean, None, 64)

    baselines = {"random": asdict(score(0.0)), "constant": asdict(score(0.0)), "action": "0"}
    settings = trainer.config.parse(["--learn", "cartpole", "--teacher", "test_teachers:balance"])
    spaces = make_environment("cartpole", 1, 1).spaces
    results = {"probe": baselines, "teacher": {"score": asdict(score(100.0))}}
    task = learn_task.Task(settings, tmp_path, spaces, results, verbose=False)
    assert task.verdict(score(500.0), score(100.0)).goal == spaces.max_return == 500.0
    clones, means, written = iter(torch.arange(3.0)[:, None]), iter((10.0, 30.0, 20.0, 25.0)), list[float]()
    monkeypatch.setattr(learn_teacher, "cloned_proxy", lambda *_: next(clones))
    monkeypatch.setattr(
        learn_teacher, "proxy_factory", lambda *_: SimpleNamespace(parameters=SimpleNamespace(target=float))
    )
    monkeypatch.setattr(learn_task.Task, "judge", lambda *_: score(next(means)))
    monkeypatch.setattr(
        learn_teacher, "_write_proxy", lambda task, name, settings, flat, scores: written.append(float(flat))
    )
    result = learn_teacher.make_bandit(task)
    assert written == [1.0] and (result["score"]["mean"], result["fraction"]) == (25.0, 0.25)


@pytest.mark.parametrize(
    "game, scales",  # of observations, rewards and actions
    [("cartpole", (False, False, False)), ("MountainCarContinuous-v0", (True, True, True)),
     ("test_learn:Corridor-v0", (False, True, False))],
)  # fmt: skip
def test_agents_on_a_task_without_default_settings_have_scales(
    game: str, scales: tuple[bool, ...], tmp_path: Path
) -> None:
    settings = trainer.config.parse(["--learn", game])
    spaces = make_environment(settings.run.gamename, 1, 1).spaces
    task = learn_task.Task(settings, tmp_path, spaces, {}, verbose=False)
    config = learn_agents._settings_on_task(task, "PPO")
    assert (config.normalize_obs, config.normalize_reward, config.scale_actions) == scales


def test_a_truncated_episode_continues_with_its_last_rewards() -> None:
    spaces = make_environment("cartpole", 1, 1).spaces
    episodes = TeacherEpisodes(teacher("test_teachers:balance", "cartpole", spaces), "cartpole", 0)
    _, returns = episodes.returns(0.9, 32)
    # Each step pays 1, and the policy nearly always balances to the limit.
    assert returns.median() == pytest.approx(10.0, abs=1e-4)


@pytest.mark.usefixtures("short_fits")
def test_a_potential_of_cells_is_exact() -> None:
    game, source = "test_learn:Corridor-v0", "test_learn:right"
    words = f"--implementation RN --gamename {game} --preset teacher --start_from {source}"
    small = "--rn_episodes 64 --rn_discount 0.95 --proxy_hidden_size 16"
    factory: Any = proxy_factory(trainer.config.parse(f"{words} {small}".split()).proxy, game)
    phi = factory.parameters.with_weights(cloned_proxy(source, factory, 0)[None])
    cells = torch.eye(6)[None, :5]  # cell 5 is the end
    torch.testing.assert_close(phi(cells), 0.95 ** (4.0 - torch.arange(5)[None]), atol=0.02, rtol=0)
    assert factory.explained_variance > 0.98


def shuffled(obs: np.ndarray) -> np.ndarray:
    """Return unrelated actions for neighbouring cells."""
    return obs.argmax(1) * 7 % 5 % 4


@pytest.mark.usefixtures("short_fits")
def test_policy_learners_on_a_clone_are_right_in_every_cell() -> None:
    words = "--implementation SE --gamename FrozenLake8x8-v1 --proxy bandit --preset clone --first_states cells"
    settings = trainer.config.parse([*words.split(), *"--start_from test_learn:shuffled --agent PPO".split()])
    game = settings.run.gamename
    flat = cloned_proxy("test_learn:shuffled", proxy_factory(settings.proxy, game), 0)
    loop = InnerLoop(settings.proxy, "PPO", settings.agent, game)
    policy = loop.train_to_end(loop.begin(flat.expand(2, -1), [0, 1])).policy
    cells = torch.eye(64)
    assert torch.equal(policy.act(cells.expand(2, -1, -1)), torch.as_tensor(shuffled(cells.numpy())).expand(2, -1))


def mostly_left(obs: np.ndarray) -> np.ndarray:
    """Push a cart to the right in few states."""
    return (obs[:, 2] > 0.15).astype(int)


@pytest.mark.usefixtures("short_fits")
def test_a_rare_action_is_right_in_a_fifth_of_a_clone() -> None:
    words = "--implementation SE --gamename cartpole --proxy bandit --preset clone --table_size 500".split()
    settings = trainer.config.parse([*words, "--start_from", "test_learn:mostly_left"])
    factory: Any = proxy_factory(settings.proxy, "cartpole")
    flat = cloned_proxy("test_learn:mostly_left", factory, 0)[None]
    table = factory.parameters.fixed_tensors(flat)["states.table"]
    actions = factory.parameters.target(flat).act(table)
    assert actions.sum() == 100 and len(table[0].unique(dim=0)) <= 450


def test_an_environment_of_scaled_observations_pays_the_same() -> None:
    """Scaled observations are the bandit's states by the target's centre and spread, and so are a policy's inputs."""
    words = "--implementation SE --gamename cartpole --proxy bandit --preset clone --start_from test_teachers:balance"
    config = trainer.config.parse([*words.split(), "--agent", "DDQN", "--table_size", "64"]).proxy
    scaled, plain = (proxy_factory(replace(config, scale_obs=value), "cartpole") for value in (True, False))
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 100, 4, generator=generator) * torch.tensor([1.0, 2.0, 1000.0, 0.001]) + 5
    flat = scaled.parameters.fill_table(scaled.parameters.initial(Streams([0, 1])), states)
    flat[:, : scaled.parameters.num_searched] = torch.randn(2, scaled.parameters.num_searched, generator=generator)
    trainee = SimpleNamespace(members=2, envs=50, device=torch.device("cpu"))
    environments = [factory.environment(flat, trainee) for factory in (scaled, plain)]
    seeds = torch.arange(100).reshape(2, 50)
    scaled_obs, obs = (environment.reset(seeds) for environment in environments)
    expected = (obs - states.mean(1, keepdim=True)) / states.std(1, keepdim=True)
    torch.testing.assert_close(scaled_obs, expected, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(unscale_states(scaled_obs, scaled.parameters.fixed_tensors(flat)), obs)
    actions = torch.randint(2, (2, 50), generator=generator)
    rewards = [environment.step(actions).reward for environment in environments]
    torch.testing.assert_close(*rewards)
    policy = SimpleNamespace(members=2, act=lambda inputs: inputs)
    torch.testing.assert_close(environments[0].dynamics.adapt_policy(policy).act(obs), scaled_obs, atol=1e-4, rtol=1e-3)
    assert environments[1].dynamics.adapt_policy(policy) is policy


def train_until_flat(returns: list[float], training_returns: list[float] | None = None) -> list[float]:
    """Return the progress that is shown after each evaluation until the training ends. The baseline is 100."""
    shown: list[float] = []
    callback = StopWhenFlat(8, lambda fraction, text: shown.append(fraction), 500.0, baseline=100.0)
    strategy = SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision)
    state = {"state": SimpleNamespace(fn=TrainerFn.FITTING), "sanity_checking": False, "fast_dev_run": False}
    lightning_trainer: Any = SimpleNamespace(
        **state, strategy=strategy, should_stop=False, current_epoch=0, world_size=1
    )
    for epoch, score in enumerate(returns, 1):
        module: Any = SimpleNamespace(gradient_steps=1, epoch=epoch, finished_fraction=lambda epoch=epoch: epoch / 50)
        lightning_trainer.callback_metrics = {GREEDY: torch.tensor(score)}
        if training_returns is not None:
            lightning_trainer.callback_metrics[TRAINING] = torch.tensor(training_returns[epoch - 1])
        callback.on_train_epoch_end(lightning_trainer, module)
        if lightning_trainer.should_stop:
            break
    return shown


def test_a_teacher_trains_until_its_returns_are_flat() -> None:
    """A return counts as better if it is 1 % of the way from the baseline to the best one, here 3, above the best."""
    assert len(train_until_flat([400.0] + [402.9] * 20)) == 9
    assert len(train_until_flat([400.0, 402.9, 403.1] + [402.9] * 20)) == 11
    noisy_returns = [50.0] * 10 + [101.0] * 20  # below the baseline in ten epochs
    assert len(train_until_flat([400.0] * 30, noisy_returns)) == 18
    rising_returns = [110.0 + 5 * epoch for epoch in range(12)] + [165.0] * 18
    assert len(train_until_flat([400.0] * 30, rising_returns)) == 12 + 7
    assert train_until_flat([499.0, 400.0, 500.0] + [400.0] * 20) == [1 / 50, 2 / 50, 3 / 5, 4 / 5, 1.0]


@pytest.mark.parametrize(("game", "policy", "best"), [("Order", "fourteen", "14"), ("Orders", "two_and_one", "[2, 1]")])
def test_actions_of_constants_and_functions_are_the_environments(game: str, policy: str, best: str) -> None:
    """Actions that do not count from 0, or have several parts; and more of them than play at length."""
    name = f"test_learn:{game}-v0"
    baselines = Baselines.measure(name, 1)
    assert (baselines.action, baselines.constant.mean) == (best, 0.0) and baselines.random.mean < -10
    with contextlib.closing(make_environment(name, 1, 3)) as real:
        act = teacher(f"test_learn:{policy}", name, real.spaces)
        obs = real.reset(Streams([0]).episode_seeds(3))
        assert real.step(act(obs[0])[None]).reward.tolist() == [[0.0] * 3]


def test_a_function_is_a_teacher_in_python(tmp_path: Path) -> None:
    result = trainer.learn("test_learn:Corridor-v0", verbose=False, teacher=right, only="teacher", logdir=str(tmp_path))
    assert result.results["teacher"]["policy"] == "test_learn:right"
    for function in (lambda obs: obs, functools.partial(right)):
        with pytest.raises(SettingError, match="allowed: a function at the top level of a module"):
            trainer.learn("test_learn:Corridor-v0", teacher=function)


def test_panel_of_the_race_has_no_legend() -> None:
    """So `figure_panels` draws it above the panels, where it hides no curve."""
    arms = {name: {"curves": [[1.0, 2.0], [2.0, 3.0]]} for name in ("learned", "task")}
    axis = Figure().add_subplot()
    _draw_race(axis, {"arms": arms, "test_every": 8, "solved": 2.5, "agents": 2, "agent": "PPO"})
    assert axis.get_legend() is None
    _, labels = axis.get_legend_handles_labels()
    assert labels == ["race: learned reward", "race: task's reward", "race: 90 % of the way to teacher"]


@pytest.mark.parametrize(("steps", "other_steps", "expected"), [
    (16, 24, False), (16, 32, True), (80, 96, False), (None, 16, False), (16, None, True), (None, None, False),
])  # fmt: skip
def test_sooner_means_by_a_fifth_and_by_two_tests(steps: int | None, other_steps: int | None, expected: bool) -> None:
    arms = {"learned": {"median": steps}, "task": {"median": other_steps}}
    assert is_clearly_sooner(arms, "learned", "task", test_every=8) == expected


@pytest.mark.parametrize(("default", "same", "chosen"), [
    ((20, 5.0), (10, 4.0), "same"), ((None, 5.0), (None, 6.0), "same"), ((10, 4.0), (None, 9.0), "default"),
])  # fmt: skip
def test_the_race_is_against_the_better_settings_with_the_tasks_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: tuple, same: tuple, chosen: str
) -> None:
    """Agents with the task's reward train with its default settings, and with the settings of the learned reward."""
    settings = trainer.config.parse("--learn cartpole --teacher test_teachers:balance --race_agents 1".split())
    spaces = make_environment("cartpole", 1, 1).spaces
    score = asdict(Score(100.0, 0.0, 100.0, None, 64))
    results = {"probe": {"random": score | {"mean": 0.0}, "steps_per_second": 1e4}, "teacher": {"score": score}}
    task = learn_task.Task(settings, tmp_path, spaces, results, verbose=False)
    reward = understudy.load("cartpole-additive-potential")
    shutil.copyfile(reward.path, tmp_path / learn_command.REWARD)
    arms, configs = iter([(10, 9.0), default, same]), []

    def train_for_race(task: Any, loop: Any, weights: Any, watch: None) -> Any:
        configs.append((weights is None, loop.agent_config))
        median, late = next(arms)
        return {"median": median, "late": late, "real_steps": 1}

    monkeypatch.setattr(learn_agents, "_train_for_race", train_for_race)
    race = learn_agents.compare_rewards(task)
    assert [is_task for is_task, _ in configs] == [False, True, True] and race["real_steps"] == 3
    assert configs[0][1] == configs[2][1] != configs[1][1]
    arm = race["arms"]["task"]
    assert (arm["median"], arm["late"]) == (default if chosen == "default" else same) and arm["settings"] == chosen


@pytest.mark.parametrize(("median", "late", "text"), [
    (None, -1.0, "from agent number 4 on if agents take 50 steps."),
    (64, 0.5, "from agent number 4 on if agents take 50 steps."),
    (10, 0.5, "from agent number 4 on if agents take 50 steps, from number 16 on if they take 10, the median "
     "of the race until a first test near the teacher."),
])  # fmt: skip
def test_the_conclusion_counts_the_agents_of_the_race(median: int | None, late: float, text: str) -> None:
    score = {"mean": 1.0, "error": 0.0, "iqm": 1.0, "bounds": (1.0, 1.0), "count": 8}
    race = {"agent": "PPO", "gain": False, "test_every": 8, "arms": {"learned": {"median": None, "late": late}}}
    race["arms"]["task"] = {"median": median, "late": 2.0}
    results = {"probe": {"random": score | {"mean": 0.0}}, "teacher": {"real_steps": 100, "score": score}, "race": race}
    results |= {"bandit": {"real_steps": 50}, "exam": {"real": {"PPO": score}, "steps": 50}}
    sentences = conclusion(results)
    assert any(sentence.endswith(text) for sentence in sentences)
    assert any("less than random play" in sentence for sentence in sentences) == (late < 0)
    assert "return more than the teacher, 1.0: PPO of the race 2.0." in sentences[-1]
