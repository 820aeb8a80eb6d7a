"""Settings of every search for a proxy, whatever the proxy is: the search itself, and the choice of its winner.

The ``Config`` of a proxy's folder is what the proxy is, and these: ``class Config(SearchConfig, ...)``. The only
home of their defaults and ranges; imports no torch. Sources, [F] and [L]: `models.proxies.synthetic.config`.
"""

import functools
from dataclasses import dataclass

from models.settings import setting

_search = functools.partial(setting, section="search")
_inner = functools.partial(setting, section="inner loop")
_choice = functools.partial(setting, section="choosing the winner")


@dataclass(frozen=True)
class SearchConfig:
    """The outer loop (strategy, population); the inner loop, in which fresh agents train and are tested; which mean of
    the search wins, and how it is judged."""

    strategy: str = _search(
        "openai_es", "nes as published [F], openai_es with Adam, or snes [L]", choices=("nes", "openai_es", "snes")
    )
    population: int = _search(64, "perturbed proxies per generation; both of a mirrored pair count", minimum=1)
    generations: int = _search(100, "largest number of generations", minimum=1)
    noise_std: float = _search(0.05, "standard deviation of the perturbations", above=0)
    step_size: float = _search(
        0.02, "learning rate of the outer loop: a factor (nes), Adam's (openai_es), the mean's (snes)", above=0
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
    initial_draws: int = _search(1, "initial proxies sampled; the search starts from the best", minimum=1)
    initial_members: int = _search(16, "perturbed copies that score each initial proxy", minimum=1)

    agents_per_proxy: int = _inner(1, "fresh agents that train on each proxy", minimum=1)
    inner_rule: str = _inner(
        "budget",
        "budget: an agent trains for inner_steps; it stops before that once its returns no longer change (plateau [F]) "
        "or once tests on the real environment reach solved_reward (tests [F])",
        choices=("budget", "plateau", "tests"),
    )
    inner_steps: int = _inner(3000, "largest number of steps that an agent trains for on a proxy", minimum=1)
    train_episodes: int | None = _inner(None, "largest number of episodes of a training [F]; null: any", minimum=1)
    early_out_num: int = _inner(10, "episodes over which returns are averaged for the rule [F]", minimum=1)
    early_out_virtual_diff: float = _inner(0.01, "plateau: largest relative change of that average [F]", above=0)
    plateau_floor: int = _inner(0, "plateau: steps before training may end", minimum=0)
    test_episodes: int = _inner(8, "greedy episodes on the real environment that score an agent", minimum=1)
    test_limit: int | None = _inner(None, "largest number of their steps; null is the environment's limit", minimum=1)

    solved_reward: float | None = _choice(None, "mean return that counts as solved; null: none does")
    quit_when_solved: bool = _choice(False, "end the search once agents of the mean reach solved_reward [F]")
    center_agents: int = _choice(16, "fresh agents that score the unperturbed mean", minimum=1)
    center_every: int = _choice(5, "generations between these scores", minimum=1)
    keep_best: int = _choice(6, "best means of the search that are re-evaluated at the end", minimum=1)
    retest_agents: int = _choice(32, "fresh agents of the re-evaluation, for each mean", minimum=1)
    retest_drawn: bool = _choice(
        True, "sample all hyperparameters of these agents (vary_hp), so that the winner serves many kinds of agents"
    )
    report_agents: int = _choice(64, "fresh agents of the winner's held-out evaluation", minimum=1)
    deploy_steps: int | None = _choice(
        None, "steps that an agent trains for in both evaluations and in use; null is inner_steps", minimum=1
    )

    @property
    def steps_in_use(self) -> int:
        """Largest number of steps that an agent trains for on a finished proxy."""
        return self.deploy_steps or self.inner_steps


def validate(config: SearchConfig) -> str | None:
    """What is wrong with a combination of settings, as one line; None where nothing is."""
    if config.mirrored and config.population % 2:
        return f"population is {config.population}; allowed with mirrored: an even number"
    if config.inner_rule == "tests" and config.solved_reward is None:
        return "inner_rule is 'tests', but solved_reward is null; allowed: a solved_reward to test for"
    if config.quit_when_solved and config.solved_reward is None:
        return "quit_when_solved is on, but solved_reward is null; allowed: a solved_reward to quit at"
    if config.strategy == "nes" and config.score_transform >= 5 and config.center_every > 1:
        return (
            f"score_transform is {config.score_transform}, which compares with the mean, but center_every is "
            f"{config.center_every}; allowed: a center_every of 1, or a score_transform from 0 to 4"
        )
    return None
