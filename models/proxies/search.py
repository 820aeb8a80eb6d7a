"""Settings that all searches for proxies have: of the search itself, and of the choice of its winner.

Each kind of proxy adds more settings in its folder: ``class Config(SearchConfig, ...)``. Imports no torch.
`models.proxies.synthetic.config` lists the sources [F] and [L].
"""

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.family import Hyperparameters, reasons_by_setting
from models.settings import field_types, machine_code, setting, width

OBJECTIVES = {
    "final": "the return of tests after training",
    "average": "their mean over the training",
    "auc": "their sum over its steps",
    "threshold": "few steps until solved [F]",
}
"""Objective that a search can maximise -> its description. The function of this name in
``control/evolution/objectives.py`` computes it."""
CLONES = ("clone", "teacher")
"""Presets that make a proxy from a policy, without a search."""

_network = functools.partial(setting, section="proxy")
_search = functools.partial(setting, section="search", fit=False)
_inner = functools.partial(setting, section="inner loop")
_choice = functools.partial(setting, section="choosing the winner", fit=False)


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes and activation of a proxy's networks."""

    proxy_hidden_size: int = width(128, "units of each hidden layer of the networks [F]", section="proxy")
    proxy_hidden_layer: int = _network(1, "hidden layers of the networks [F]; 0: linear ones", minimum=0, maximum=16)
    proxy_activation_fn: str = _network(
        "leakyrelu",
        "activation of the networks; prelu keeps its slope of 0.25, as in the published search [F]",
        choices=("relu", "leakyrelu", "tanh", "prelu", "identity"),
    )


@dataclass(frozen=True)
class SearchConfig(Hyperparameters):
    """Settings of a search. In the outer loop, a strategy changes a population of proxies. In the inner loop, new
    agents train on proxies and play test episodes. The winner is one of the means of the search distribution."""

    strategy: str = _search(
        "openai_es",
        "nes as published [F], openai_es with Adam, snes [L], or ars, augmented random search, which uses fitness "
        "itself; the others use ranks",
        choices=("nes", "openai_es", "snes", "ars"),
    )
    population: int = _search(64, "perturbed proxies per generation; a mirrored pair counts as two", minimum=1)
    generations: int | None = _search(
        100,
        "largest number of generations; null (the default with total_steps): no limit",
        minimum=1,
        changeable=True,
        tunable=False,
    )
    noise_std: float = _search(0.05, "standard deviation of the perturbations", above=0)
    step_size: float = _search(
        0.02, "learning rate of the outer loop: a factor (nes, ars), Adam's (openai_es), the mean's (snes)", above=0
    )
    score_transform: int = _search(7, "rule by which nes turns fitness into weights [F]", minimum=0, maximum=7)
    nes_step_size: bool = _search(False, "nes: divide the step by the number of perturbations [F]")
    mirrored: bool = _search(True, "perturb in both directions")
    weight_decay: float = _search(
        0.0, "share of the weights subtracted per generation; openai_es: factor of an L2 gradient", minimum=0, below=1
    )
    common_random_numbers: bool = _search(
        True, "all proxies of a generation get agents of the same seeds and the same tests"
    )
    scored_by: str = _search(
        "agents",
        "how a proxy is scored. agents: by agents that train on it; target: by the return of the policy that its "
        "reward defines, without training, if it defines one",
        choices=("agents", "target"),
        later=True,
    )
    start_from: str | None = _search(
        None,
        "the search starts from the parameters of this proxy (file, run folder or name), or from a bandit made from "
        "this policy: an agent's run or checkpoint, a file of stable-baselines3 (no VecNormalize), or module:function "
        "of observations [N, S], clipped to the bounds of continuous actions; null: random parameters",
    )
    rank_apart: bool = _search(
        False,
        "rank the population by each of its agents separately, then add up the ranks; off: by the mean of its agents",
    )
    second_phase: int | None = _search(
        None, "generations after which the strategy restarts from its mean, with the settings below", minimum=1
    )
    second_noise_std: float | None = _search(None, "noise_std of that phase; null: as in the first phase", above=0)
    second_step_size: float | None = _search(None, "step_size of that phase; null: as in the first phase", above=0)
    second_agents: int | None = _search(None, "agents_per_proxy of that phase; null: as in the first phase", minimum=1)
    second_steps: int | None = _search(None, "inner_steps of that phase; null: as in the first phase", minimum=1)
    second_scored_by: str | None = _search(
        None, "scored_by of that phase; null: as in the first phase", choices=("agents", "target"), later=True
    )
    initial_draws: int = _search(1, "initial proxies sampled; the search starts from the best", minimum=1)
    initial_members: int = _search(16, "perturbed copies that score each initial proxy", minimum=1)
    initial_generations: int | None = _search(
        None,
        "score initial proxies by searches: this many generations from each, after which the better half continues "
        "for as many, until one is left; null: by perturbed copies",
        minimum=1,
        later=True,
    )

    objective: str = _inner(
        "final",
        f"quantity that a search maximises. {'; '.join(f'{name}: {words}' for name, words in OBJECTIVES.items())}",
        choices=OBJECTIVES,
        fit=False,
    )
    test_every: int | None = _inner(
        None, "steps of an agent's training between tests on the real environment; null tests at its end", minimum=1
    )
    average_from: int = _inner(0, "average: steps of training before the first test that counts", minimum=0, fit=False)
    solved_bonus: float = _inner(
        0.0, "average: bonus on a test that reaches solved_reward", minimum=0, later=True, fit=False
    )
    unsolved_weight: float = _inner(
        100.0, "threshold: steps that count for each missing point of return [F]", minimum=0, fit=False
    )
    survival_bonus: float = _inner(
        0.0,
        "final: reward of the environment for each step without a fall. It is subtracted from fitness, because a "
        "search may else end with a policy that does not move. The winner is chosen by whole returns",
        minimum=0,
        later=True,
        fit=False,
    )
    compiled: bool = machine_code(section="inner loop")
    agents_per_proxy: int = _inner(1, "fresh agents that train on each proxy", minimum=1, fit=False)
    agents_take_turns: str = _inner(
        "seeds",
        "how several agents (DDQN,PPO) are distributed. seeds: each proxy has the same number of each, chosen by "
        "their seeds; generations: all agents of a generation are of one kind, and kinds rotate",
        choices=("seeds", "generations"),
        later=True,
        fit=False,
    )
    inner_rule: str = _inner(
        "budget",
        "budget: an agent trains for inner_steps; plateau: it stops early if its returns no longer change [F]; "
        "tests: it stops early if tests on the real environment reach solved_reward [F]",
        choices=("budget", "plateau", "tests"),
    )
    inner_steps: int = _inner(3000, "largest number of steps that an agent trains for on a proxy", minimum=1)
    train_episodes: int | None = _inner(None, "largest number of episodes of a training [F]; null: no limit", minimum=1)
    early_out_num: int = _inner(10, "episodes over which the rule averages returns [F]", minimum=1)
    early_out_virtual_diff: float = _inner(0.01, "plateau: largest relative change of that average [F]", above=0)
    plateau_floor: int = _inner(0, "plateau: steps before training may end", minimum=0)
    test_episodes: int = _inner(8, "greedy episodes on the real environment that score an agent", minimum=1)
    test_limit: int | None = _inner(
        None, "largest number of steps of these episodes; null is the environment's limit", minimum=1
    )
    test_limit_first: int | None = _inner(
        None,
        "test_limit of the first generations, which then grows to test_limit [L]; re-evaluation and held-out "
        "evaluation use test_limit; null: test_limit in all generations",
        minimum=1,
        later=True,
        fit=False,
    )
    test_limit_grows: tuple[int, ...] = _inner(
        (200, 1800),
        "generations A B between which the limit grows linearly: up to A tests end after test_limit_first steps, "
        "from B on after test_limit",
        minimum=1,
        max_items=2,
        later=True,
        fit=False,
    )

    solved_reward: float | None = _choice(
        None, "mean return that counts as solved; null: none", fit=True, tunable=False
    )
    quit_when_solved: bool = _choice(
        False, "end the search once agents of the mean reach solved_reward [F]", tunable=False
    )
    choose_by: str = _choice(
        "return",
        "return: the winner has the best return after training; stays: it has most agents that solve every test of "
        "the second half of their training",
        choices=("return", "stays"),
    )
    center_agents: int = _choice(16, "fresh agents that score the unperturbed mean", minimum=1)
    eval_every: int = _choice(5, "generations (epochs) between these scores, from the first on", minimum=1)
    keep_best: int = _choice(6, "best means of the search that are re-evaluated at the end", minimum=1)
    retest_agents: int = _choice(32, "fresh agents of the re-evaluation, for each mean", minimum=1)
    retest_drawn: bool = _choice(
        True, "sample all hyperparameters of these agents (vary_hp), so that the winner serves many kinds of agents"
    )
    report_agents: int = _choice(
        64, "fresh agents of the winner's held-out evaluation", minimum=1, fit=True, tunable=False
    )
    deploy_steps: int | None = _choice(
        None,
        "training steps of an agent in both evaluations and in use; null is inner_steps",
        minimum=1,
        fit=True,
        tunable=False,
    )

    @property
    def steps_in_use(self) -> int:
        """Return the largest number of steps that an agent trains for on a finished proxy."""
        return self.deploy_steps or self.inner_steps

    def generation_settings(self, generation: int) -> "SearchConfig":
        """Return the settings of a generation, counted from 1. In the second phase, settings such as
        ``second_noise_std`` replace ``noise_std``, unless they are None. ``test_limit`` grows linearly from
        ``test_limit_first`` between the two generations in ``test_limit_grows``."""
        changes: dict[str, Any] = {}
        if self.second_phase is not None and generation > self.second_phase:
            changes = {
                "noise_std": self.second_noise_std,
                "step_size": self.second_step_size,
                "agents_per_proxy": self.second_agents,
                "inner_steps": self.second_steps,
                "scored_by": self.second_scored_by,
            }
        if self.test_limit_first is not None:
            assert self.test_limit is not None
            start, end = self.test_limit_grows  # generations
            elapsed = min(max(generation, start), end) - start
            growth = (self.test_limit - self.test_limit_first) * elapsed // (end - start)
            changes["test_limit"] = self.test_limit_first + growth
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def validate(self) -> str | None:
        if self.mirrored and self.population % 2:
            return f"population is {self.population}; allowed with mirrored: an even number"
        if self.strategy == "ars" and not self.mirrored:
            return "mirrored is off, but strategy is 'ars', which compares the two of a pair; allowed: mirrored"
        if "target" in (self.scored_by, self.second_scored_by) and self.objective != "final":
            return f"objective is {self.objective!r}, but a target is scored without training; allowed: final"
        descriptions = {"solved_reward": "a solved_reward to reach", "test_every": "steps between tests"}
        # A setting, whether its value requires another setting, and the name of this other setting.
        requirements = (
            ("solved_bonus", self.solved_bonus > 0, "solved_reward"),
            ("inner_rule", self.inner_rule == "tests", "solved_reward"),
            ("objective", self.objective == "threshold", "solved_reward"),
            ("objective", self.objective in ("average", "auc"), "test_every"),
            ("choose_by", self.choose_by == "stays", "solved_reward"),
            ("choose_by", self.choose_by == "stays", "test_every"),
            ("quit_when_solved", self.quit_when_solved, "solved_reward"),
        )
        for name, is_required, required_name in requirements:
            if is_required and getattr(self, required_name) is None:
                allowed = descriptions[required_name]
                return f"{name} is {getattr(self, name)!r}, but {required_name} is null; allowed: {allowed}"
        if self.strategy == "nes" and self.score_transform >= 5 and (self.rank_apart or self.eval_every > 1):
            line = f"score_transform is {self.score_transform}, which compares with the mean"
            allowed = "allowed: rank_apart off and an eval_every of 1, or a score_transform from 0 to 4"
            return f"{line}, but rank_apart is {self.rank_apart} and eval_every is {self.eval_every}; {allowed}"
        return _test_every_error(self) or _test_limit_error(self)

    def ineffective(self) -> dict[str, str]:
        plateau_settings = ("early_out_virtual_diff", "plateau_floor")
        names = [name for name in field_types(type(self)) if name.startswith("second_")]
        second_phase_settings = tuple(name for name in names if name != "second_phase")
        # A rule is a condition, the settings that have no effect if it holds, and the reason.
        return reasons_by_setting(
            (self.objective != "average", ("average_from", "solved_bonus"), f"objective is {self.objective!r}"),
            (self.objective != "final", ("survival_bonus",), f"objective is {self.objective!r}"),
            (self.objective != "threshold", ("unsolved_weight",), f"objective is {self.objective!r}"),
            (self.inner_rule != "plateau", plateau_settings, f"inner_rule is {self.inner_rule!r}"),
            (self.strategy != "nes", ("score_transform", "nes_step_size"), f"strategy is {self.strategy!r}"),
            (self.second_phase is None, second_phase_settings, "second_phase is null, so there is none"),
            (self.initial_draws == 1, ("initial_members", "initial_generations"), "initial_draws is 1"),
            (self.initial_generations is not None, ("initial_members",), "initial_generations is given"),
            (self.test_limit_first is None, ("test_limit_grows",), "test_limit_first is null"),
        )


@functools.cache
def load_presets(kind: str) -> Any:
    """Load the default settings for a ``kind`` of proxy ("synthetic", "reward") from its ``presets.yaml``, with lists
    as tuples. For example, ``load_presets("synthetic")["presets"]["mdp"]["paper"]`` are the settings of a preset of an
    MDP."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_tuple(self, node: Any) -> Any:
            return tuple(self.construct_sequence(node))

    Loader.add_constructor("tag:yaml.org,2002:seq", Loader.construct_tuple)
    text = (Path(__file__).parent / kind / "presets.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader)


def _test_every_error(config: SearchConfig) -> str | None:
    """Return the first error in settings that do not fit ``test_every``, None if there is none."""
    if config.test_every is None:
        return None
    if config.inner_rule != "budget":
        return f"test_every is {config.test_every}, but inner_rule is {config.inner_rule!r}; allowed: budget"
    if config.train_episodes is not None:
        return f"test_every is {config.test_every}, but train_episodes is {config.train_episodes}; allowed: null"
    shortest = min(config.inner_steps, config.steps_in_use)
    if config.second_phase is not None and config.second_steps is not None:
        shortest = min(shortest, config.second_steps)
    first_test = config.average_from + config.test_every
    if first_test > shortest:
        line = f"average_from + test_every is {first_test}; allowed: at most {shortest}, the steps of the shortest"
        return f"{line} training (inner_steps, second_steps, deploy_steps), so that there is a test"
    return None


def _test_limit_error(config: SearchConfig) -> str | None:
    """Return the first error in settings that do not fit ``test_limit_first``, None if there is none."""
    first, last, generations = config.test_limit_first, config.test_limit, config.test_limit_grows
    if first is None:
        return None
    if last is None or first > last:
        return f"test_limit_first is {first}, but test_limit is {last}; allowed: a test_limit to grow to, or null"
    if len(generations) != 2 or generations[0] >= generations[1]:
        line = f"test_limit_grows is {' '.join(map(str, generations))}"
        return f"{line}; allowed: two generations, the first before the second"
    # These settings compare returns of whole episodes with solved_reward, so a shorter limit must not cut episodes.
    if config.inner_rule == "tests" or config.objective == "threshold" or config.solved_bonus:
        line = f"test_limit_first is {first}, but solved_reward, to which returns are compared,"
        return f"{line} is one of whole episodes; allowed: test_limit_first null"
    return None
