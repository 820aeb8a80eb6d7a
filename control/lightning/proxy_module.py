"""The LightningModules of searches for learned environments and learned rewards: an epoch is a generation.

The callback `EvolutionStrategy` runs the outer loop. If the trainer does not have this callback, the module adds it.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from control.cli.settings import Settings, as_dict
from control.evolution.cluster import Workers, make_workers
from control.evolution.generations import InitialSearch, add_visited_states, generation_agents, population_fitness
from control.evolution.inner_loop import InnerLoop, Outcome, fresh_seeds, implementation_means
from control.evolution.objectives import objective
from control.evolution.strategies import Archive
from control.evolution.teachers import is_teacher, teacher
from control.lightning.evolution_strategy import EvolutionStrategy
from control.lightning.module import RunModule
from control.loops.build import adapt_to_spaces, check_spaces, decide_compiled
from control.reports.tables import number_text
from control.reports.tags import BEST_FITNESS, FITNESS, MEAN_RETURN, SPEED, SYNTHETIC_STEPS
from control.storage.checkpoints import Checkpoint, checked_content
from envs.make import ProxyFactory, proxy_factory
from models.proxies import files
from models.proxies.files import first_parameters
from models.proxies.search import CLONES, SearchConfig
from models.registry import agent_class, parse_agents
from models.settings import SettingError
from models.streams import Streams
from understudy.kinds import KINDS


class ProxyModule(RunModule):
    """The LightningModule of a search. In an epoch (a generation), it trains fresh agents on each proxy (learned
    environment or reward) of a population, and tests them on the real environment (`train_epoch`). The test returns
    become the population's fitness (`validation_step`).

    The only parameter is the search distribution's mean, ``[1, D]``. The callback `EvolutionStrategy` sets
    ``population [P, D]`` before an epoch. After the epoch it reads ``fitness [P]``, ``mean_fitness``, and
    ``selection_fitness [P]``, by which the strategy ranks the proxies. Perturbations and agents depend only on the
    run's seed and the generation, so checkpoints contain nothing of an unfinished generation.
    """

    unit = "generation"
    evolves = True  # whether an `EvolutionStrategy` moves the mean
    real_label = "real"  # the name of the printed column of `real_steps`
    saved = (*RunModule.saved, "real_steps", "mean_return", "first_scores")

    def __init__(self, settings: Settings, workers: Workers, factory: ProxyFactory):
        super().__init__(settings)
        self.config: SearchConfig = settings.proxy
        self.workers, self.factory = workers, factory
        # The mean [1, D] of the search distribution: a parameter, so that checkpoints contain it.
        self.mean = nn.Parameter(torch.zeros(1, factory.parameters.size), requires_grad=False)
        self.population = torch.zeros(0, factory.parameters.size)  # [P, D]; empty before the first generation
        # [P] each. The strategy ranks the proxies by the second, which may be computed from ranks of their agents.
        self.fitness = self.selection_fitness = torch.zeros(0)
        self.mean_fitness: float | None = None  # None in generations that do not evaluate the mean
        # Mean return of agents on the latest evaluated mean; -inf if their tests had a shorter time limit.
        self.mean_return = -math.inf
        # Scores of the agents on the first mean.
        self.first_scores = torch.full((self.config.center_agents,), torch.nan)
        self.outcome: Outcome | None = None  # results of the agents of the latest generation
        self.real_steps = 0  # number of steps in the real environment so far
        self.agents = parse_agents(settings.run.agent)  # names of the agents' implementations
        self.num_implementations = len(self.agents)
        # Implementation -> `mean_return` of its agents. Empty if there is only one implementation.
        self.return_by_agent: dict[str, float] = {}
        self.legend = (
            "fitness, best: mean and highest of all networks; center: return on the mean network; "
            f"{self.steps_kind}: steps of all agents, {self.real_label}: steps of tests"
        )

    @torch.no_grad()
    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute a step or a reward with the networks of the mean. Subclasses describe inputs and result."""
        return self.factory.forward(self.mean.detach(), *inputs, **options)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(*batch)

    def save(self, path: str | Path, **description: Any) -> None:
        """Write the mean to the safetensors file ``path``, which `understudy.load` opens. ``description`` has further
        plain data for the description in the file, such as ``scores={...}``."""
        mean, game = self.mean.detach()[0], self.settings.run.gamename
        description = {"settings": as_dict(self.settings)} | description
        files.save(path, mean, config=self.config, spaces=self.factory.spaces, game=game, description=description)

    def search_vector(self) -> Tensor:
        """Return the parameters ``[K]`` of the mean that a search changes, out of all D."""
        return self.factory.searched_part(self.mean.detach()[0])

    def proxies(self, searched: Tensor) -> Tensor:
        """Complete the parameters that the search changes, ``searched [..., K]``, to all parameters ``[..., D]`` of
        proxies. The other parameters are copied from the mean."""
        return self.factory.with_searched_part(searched, self.mean.detach()[0])

    def set_mean(self, mean: Tensor) -> None:
        """Replace the mean by a copy of ``mean [D]``."""
        self.mean.data = mean[None].clone()

    def first_mean(self) -> Tensor:
        """Return the parameters ``[D]`` of the proxy from which a search starts. The choice may train agents, whose
        steps are counted."""
        seed, count = self.settings.run.seed, self.num_implementations
        return InitialSearch(self.config, self.factory, seed, count, self._train_fresh, self.count_real_steps).mean()

    def another_mean(self, seed: int) -> Tensor:
        """Return the parameters ``[K]`` that a search changes, of a random initial proxy."""
        return self.factory.searched_part(self.factory.initial(Streams([seed]))[0])

    def has_solved(self) -> bool:
        """Return whether the search ends because the mean solves the task (``quit_when_solved``)."""
        solved = self.config.solved_reward
        return self.config.quit_when_solved and solved is not None and self.mean_return >= solved

    def population_solves(self) -> bool:
        """Return whether the population of this generation solves the task: both the average return of its agents and
        its average fitness, which may contain more than the return, reach ``solved_reward``. False if tests do not have
        the final time limit yet. Otherwise True if all agents diverged."""
        solved = self.config.solved_reward
        if solved is None or not self.has_final_test_limit():
            return False
        assert self.outcome is not None
        lowest = min(float(self.outcome.scores.nanmean()), float(self.fitness.nanmean()))
        return math.isnan(lowest) or lowest >= solved  # NaN: all agents diverged

    def train_epoch(self) -> None:
        """Train and test the agents of a generation: of the population and, in some generations, of the mean. Set
        ``row`` to speed and times, and ``outcome`` to the results."""
        self.epoch = self.current_epoch + 1
        config = self.config.generation_settings(self.epoch)
        mean: Tensor | None = None  # the mean, if this generation evaluates it
        if (self.epoch - 1) % config.eval_every == 0 or self.epoch == self.epochs:
            mean = self.with_visited_states(self.mean.detach()[0], self.epoch)
            self.set_mean(mean)
        seed, name = self.settings.run.seed, f"generation {self.epoch}"
        proxies, seeds = generation_agents(
            self.population, mean, config, seed, self.num_implementations, self.epoch, name
        )
        start = time.perf_counter()
        self.outcome = self._train_fresh(proxies, seeds)
        seconds = time.perf_counter() - start
        self.row = {
            SPEED: self.outcome.steps.sum()[None] / seconds,
            "time/generation": torch.tensor([seconds]),
            "time/train": torch.tensor([self.outcome.train_seconds]),
            "time/test": torch.tensor([self.outcome.test_seconds]),
        }

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Compute the fitness of the population from the tests in `train_epoch`, and the fitness of the mean if agents
        trained on it. Add metrics to ``row``."""
        outcome = self.outcome
        if outcome is None:  # a trainer may try a validation before the first epoch
            return
        config = self.config.generation_settings(self.epoch)
        scores = objective(outcome, config)  # [N], a score for each agent
        self.fitness, self.selection_fitness, scores_of_mean = population_fitness(scores, config, len(self.population))
        finite = self.fitness[self.fitness.isfinite()]
        if not len(finite):
            finite = torch.tensor([torch.nan])
        metrics = {
            FITNESS: finite.mean(),
            BEST_FITNESS: finite.max(),
            "search/fitness_worst": finite.min(),
            "search/fitness_std": finite.std(correction=0),
            "search/real_steps": torch.tensor(float(self.real_steps), dtype=torch.float64),
            SYNTHETIC_STEPS: self.env_steps[0].float(),
            "search/steps_per_agent": outcome.steps.float().mean(),
        }
        if self.settings.proxy.proxy != "bandit":  # episodes of a bandit have one step
            metrics["search/episode_length"] = outcome.steps.sum() / outcome.episodes.sum().clamp(min=1)
        self.mean_fitness = None
        if len(scores_of_mean):
            returns_of_mean = outcome.scores[-len(scores_of_mean) :]  # the mean's agents are the last of all agents
            metrics |= self._evaluate_mean(scores_of_mean, returns_of_mean)
        self.row |= {tag: value[None] for tag, value in metrics.items()}  # [1], because a search has one member

    def _evaluate_mean(self, scores: Tensor, returns: Tensor) -> dict[str, Tensor]:
        """Evaluate the search's mean by the N agents that trained on it. ``scores [N]`` are their objectives, ``returns
        [N]`` their mean test returns. Set ``mean_fitness`` and ``mean_return``, for several implementations
        ``return_by_agent``, and in the first generation ``first_scores``. Return metrics, tag -> scalar tensor."""
        metrics = {MEAN_RETURN: returns.nanmean()}
        self.mean_fitness = float(scores.nanmean())
        if self.epoch == 1:
            self.first_scores = scores
        if self.num_implementations > 1:
            # The implementations alternate between the N agents, as they do for the seeds 0, 1, 2, ...
            self.return_by_agent = implementation_means(self.agents, range(len(returns)), returns)
        self.mean_return = -math.inf
        if self.has_final_test_limit():
            if not returns.isnan().all():
                self.mean_return = float(returns.nanmean())
            if self.config.solved_reward is not None:
                metrics["search/center_solved"] = (returns >= self.config.solved_reward).float().mean()
        return metrics

    def has_final_test_limit(self) -> bool:
        """Return whether tests of this generation have the final time limit, so that their returns may be compared with
        solved_reward. A search may begin with a shorter limit (``test_limit_first``)."""
        return self.config.generation_settings(self.epoch).test_limit == self.config.test_limit

    def with_visited_states(self, mean: Tensor, generation: int) -> Tensor:
        """Return the ``mean [D]`` for a generation, with new initial states if the settings require them."""
        return add_visited_states(mean, self.factory, self.settings.run.seed, generation, self.count_real_steps)

    def count_real_steps(self, steps: int) -> None:
        self.real_steps += steps

    def seeds_of(self, name: str, count: int) -> list[int]:
        """Return the seeds of ``count`` fresh agents for the purpose ``name``, such as "report". Their implementations
        alternate."""
        return fresh_seeds(self.settings.run.seed, name, count, self.num_implementations)

    def _train_fresh(self, proxies: Tensor, seeds: list[int]) -> Outcome:
        """Train and test fresh agents with ``seeds [N]`` on ``proxies [N, D]``, with the settings of the current
        generation, and count their steps."""
        config = self.config.generation_settings(max(self.epoch, 1))  # the epoch is 0 while the first mean is chosen
        changes: dict[str, Any] = {"test_limit": config.test_limit, "inner_steps": config.inner_steps}
        by_target = config.scored_by == "target"
        outcome = self.workers.run(proxies, seeds, watch=self.watch, by_target=by_target, **changes)
        self.env_steps = self.env_steps + int(outcome.steps.sum())
        self.count_real_steps(outcome.test_steps)
        return outcome

    @property
    def evolution(self) -> EvolutionStrategy:
        return next(callback for callback in self.trainer.callbacks if isinstance(callback, EvolutionStrategy))  # type: ignore[attr-defined]

    @property
    def archive(self) -> Archive:
        return self.evolution.archive

    def configure_callbacks(self) -> list[pl.Callback]:
        """Return an `EvolutionStrategy` with the run's settings, unless the trainer has such a callback."""
        has_strategy = any(isinstance(callback, EvolutionStrategy) for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
        if has_strategy or not self.evolves or self.trainer.state.fn != "fit":
            return []
        return [EvolutionStrategy(self.settings.run.seed, self.config)]

    def is_over(self) -> bool:
        return super().is_over() or self.has_solved()

    def score(self) -> float | None:
        return self.mean_fitness

    def columns(self) -> dict[str, str]:
        """Return the printed row of the generation, heading -> text: the training steps of all agents, the average and
        the highest fitness of the population, the return of agents on the mean, the number of diverged proxies, and the
        real steps. Columns about the mean are left out if it was not evaluated, and steps if no agent has trained."""
        means, num_steps = self.means(), int(self.env_steps.sum())
        columns = {self.steps_kind: f"{num_steps:11,}"} if num_steps else {}
        for heading, tag in (("fitness", FITNESS), ("best", BEST_FITNESS), ("center", MEAN_RETURN)):
            if tag in means:
                columns[heading] = number_text(means[tag])
        if MEAN_RETURN in means:
            columns |= {name: number_text(score) for name, score in self.return_by_agent.items()}
        num_diverged = int((~self.fitness.isfinite()).sum())
        if num_diverged:
            columns["diverged"] = f"{num_diverged} of {len(self.fitness)}"
        return columns | {self.real_label: f"{self.real_steps:11,}"}

    def histograms(self) -> dict[str, Tensor]:
        weights_by_network = self.factory.parameters.split(self.mean.detach())  # network -> [1, its weights]
        return {f"weights/{name}": weights[0] for name, weights in weights_by_network.items()}

    def close(self) -> None:
        super().close()
        self.workers.close()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Raises CheckpointError if the state of the search does not fit the settings."""
        super().restore(checkpoint)
        if not self.evolves:
            return
        with checked_content(checkpoint.path):  # the trainer's callback loads its state later, so check it here
            strategy = EvolutionStrategy(self.settings.run.seed, self.config)
            strategy.load_state_dict(checkpoint.search_state)
            strategy.check_fits(self)


class SyntheticEnvironmentModule(ProxyModule):
    """A learned environment: ``module(states, actions)`` steps it with the mean's networks.

    States are ``[B, S]``, actions are ``[B]`` int64 or ``[B, A]``. The result is the next states ``[B, S]``, the
    rewards ``[B]`` and the terminations ``[B]`` bool.
    """

    steps_kind = "synthetic"

    def initial_states(self, seeds: Sequence[int]) -> Tensor:
        """Return the initial states ``[B, S]`` of episodes with the ``seeds [B]``."""
        factory: Any = self.factory
        return factory.initial_states(self.mean.detach(), seeds)


class RewardNetworkModule(ProxyModule):
    """A learned reward: ``module(obs, next_obs, reward, terminated)`` returns the reward that an agent receives instead
    of ``reward``. Agents step the real environment.

    Observations are ``[B, S]``, rewards and terminations are ``[B]``, and the result is ``[B]``. Potentials need a
    fifth input, the agent's discount. Modes that use the environment's info need a sixth input, its numbers ``[B, I]``.
    """

    steps_kind = "training"  # also in the real environment, so the column of `real_steps` has another name
    real_label = "tests"


def build(settings: Settings, module_class: type[ProxyModule] | None = None) -> ProxyModule:
    """Build the module of a search for a learned environment or reward, and start its workers. Raises SettingError if
    settings, agents and environment do not fit together. By default, the kind of proxy determines ``module_class``.

    The module gets a copy of the settings with two changes: ``checkpoint_every`` is 1 unless the user chose it, and
    ``compiled`` says whether agents train in machine code.
    """
    run = settings.run
    if "checkpoint_every" not in settings.explicit_names:  # a generation takes long, so a checkpoint follows each
        settings = settings.replace(checkpoint_every=1)
    if run.num_seeds > 1:
        raise SettingError(f"num_seeds is {run.num_seeds}; allowed with {run.implementation}: 1 (see bash_train.sh)")
    factory = proxy_factory(settings.proxy, run.gamename)  # makes the environments in which agents train on proxies
    for name in parse_agents(run.agent):  # the agents that train on proxies, such as "PPO,DDQN"
        check_spaces(run, agent_class(name), factory.spaces, name)
    settings = adapt_to_spaces(settings, factory.spaces, reasons=factory.ineffective())
    search = settings.proxy
    _check_agents_per_proxy(search, run.agent)
    _check_start(search, factory)
    inner_loop = InnerLoop(search, run.agent, settings.agent, run.gamename)
    compiled = decide_compiled(settings, inner_loop.runs_compiled)
    settings = settings.replace(compiled=compiled)
    job = (settings.proxy, run.agent, settings.agent, run.gamename)  # arguments of `InnerLoop` in the workers
    workers = make_workers(job, run.num_workers, run.ray_address, run.num_threads)
    if module_class is None:
        # ``used_by`` is the name of a Gymnasium wrapper, which only learned rewards have.
        is_reward_network = KINDS[settings.proxy.proxy].used_by != ""
        module_class = RewardNetworkModule if is_reward_network else SyntheticEnvironmentModule
    return module_class(settings, workers, factory)


def _check_agents_per_proxy(search: SearchConfig, agent: str) -> None:
    """Raise SettingError if the agents of a proxy cannot be divided equally among the algorithms in ``agent``, such as
    "PPO,DDQN". This is necessary if they alternate within a generation, and all proxies get the same agents."""
    if not search.common_random_numbers or search.agents_take_turns != "seeds":
        return
    num_implementations = len(parse_agents(agent))
    for name in ("agents_per_proxy", "second_agents"):
        count = getattr(search, name)
        if count is not None and count % num_implementations:
            problem = f"{name} is {count}, but agent is {agent!r}"
            raise SettingError(f"{problem}; allowed: a multiple of {num_implementations}", name)


def _check_start(search: SearchConfig, factory: ProxyFactory) -> None:
    """Raise SettingError if a search cannot begin at the proxy or policy ``search.start_from``."""
    start, preset = search.start_from, getattr(search, "preset", "")
    if start is None:
        factory.check_start()
    elif is_teacher(start):
        teacher(start, factory.game, factory.spaces, wants_values=factory.check_policy(start))
    elif preset in CLONES:  # presets that imitate a policy
        allowed = f"allowed with preset {preset}: an agent's run or checkpoint, or module:function"
        raise SettingError(f"start_from is {start!r}, which is no policy; {allowed}", "start_from")
    else:
        first_parameters(start, search, factory.spaces, factory.game)
