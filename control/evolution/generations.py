"""One generation of a search for proxies (learned environments or rewards): its agents, and the fitness from their
scores. Also the initial mean of a search, which can be the best of several candidates.

P is the size of the population, N the number of agents, D the number of parameters of a proxy, and K the number of
parameters that the search changes. ``factory`` makes environments of one kind of proxy (`envs.make.ProxyFactory`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from control.cli.colour import note
from control.evolution.fitness_shaping import centred_ranks
from control.evolution.inner_loop import Outcome, fresh_seeds
from control.evolution.objectives import objective
from control.evolution.strategies import STRATEGIES, Strategy
from control.evolution.teachers import CountSteps, Teacher, cloned_proxy, is_teacher, visited_states
from envs.make import ProxyFactory
from models.proxies.files import first_parameters
from models.proxies.search import SearchConfig
from models.streams import Streams, derive_seed


def add_visited_states(
    mean: Tensor, factory: ProxyFactory, seed: int, generation: int, count_steps: CountSteps, scaled: bool = False
) -> Tensor:
    """Return the ``mean [D]`` of a search. If the settings require it, its initial states are replaced by states that
    the best policy for this proxy visits in the real environment. If ``scaled``, the inputs of the proxy's networks are
    scaled to the new states."""
    state_seed = derive_seed(seed, f"states of generation {generation}")

    def get_obs(act: Teacher, count: int, limit: int | None) -> Tensor:
        return visited_states(act, count, limit, factory.game, state_seed, count_steps)

    return factory.with_visited_states(mean, get_obs, scaled)


def generation_agents(
    population: Tensor,
    mean: Tensor | None,
    config: SearchConfig,
    seed: int,
    num_implementations: int,
    number: int,
    name: str,
) -> tuple[Tensor, list[int]]:
    """Return the proxies ``[N, D]`` on which the N agents of a generation train, and the agents' seeds ``[N]``.

    The first agents are ``agents_per_proxy`` agents for each proxy of the ``population [P, D]``. Unless ``mean [D]`` is
    None, ``center_agents`` agents for it follow. The agents have ``num_implementations`` algorithms, such as 2 for
    PPO and DDQN. ``number`` is the number of the generation, from 1. ``seed`` and ``name`` determine the agents' seeds.
    """
    # Index of the implementation of all agents in this generation. None: implementations alternate between the agents.
    index = (number - 1) % num_implementations if config.agents_take_turns == "generations" else None
    num_agents = len(population) * config.agents_per_proxy
    if config.common_random_numbers:  # every proxy gets agents with the same seeds
        seeds = fresh_seeds(seed, name, config.agents_per_proxy, num_implementations, index) * len(population)
    else:
        seeds = fresh_seeds(seed, name, num_agents, num_implementations, index)
    proxies = population.repeat_interleave(config.agents_per_proxy, 0)
    if mean is not None:
        proxies = torch.cat([proxies, mean.expand(config.center_agents, -1)])
        seeds = seeds + fresh_seeds(seed, f"centre of {name}", config.center_agents, num_implementations)
    return proxies, seeds


def population_fitness(scores: Tensor, config: SearchConfig, population: int) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the fitness of the ``population`` = P proxies of a generation from the ``scores [N]`` of their agents, in
    the order of `generation_agents`. The fitness of a proxy is the average score of its agents.

    Return the fitness ``[P]``, the fitness ``[P]`` by which the strategy ranks proxies, and the scores of agents on the
    mean. The second differs from the first if ``config.rank_apart``: it is the average rank of the proxy's agents. The
    first agents of all proxies are ranked among each other, then the second agents, and so on.
    """
    num_agents = population * config.agents_per_proxy
    scores_by_proxy = scores[:num_agents].view(population, config.agents_per_proxy)
    scores_of_mean = scores[num_agents:]
    fitness = scores_by_proxy.mean(1)
    if not config.rank_apart:
        return fitness, fitness, scores_of_mean
    ranks_by_position = torch.stack([centred_ranks(column) for column in scores_by_proxy.unbind(1)])
    mean_ranks = ranks_by_position.mean(0)  # [P]
    ranking_fitness = mean_ranks.masked_fill(~fitness.isfinite(), torch.nan)  # NaN if an agent diverged
    return fitness, ranking_fitness, scores_of_mean


@dataclass
class InitialSearch:
    """Chooses the proxy from which a search starts. ``train(proxies [N, D], seeds [N])`` trains and tests a fresh agent
    on each proxy; the agents have ``num_implementations`` algorithms. ``count_steps`` is called with the number of real
    steps outside of ``train``."""

    config: SearchConfig
    factory: ProxyFactory
    seed: int
    num_implementations: int
    train: Callable[[Tensor, list[int]], Outcome]
    count_steps: CountSteps = lambda steps: None

    def mean(self) -> Tensor:
        """Return the initial mean ``[D]``. With ``start_from``, it is the proxy of that name, or a proxy cloned from
        the policy of that name. Otherwise it is the best of ``initial_draws`` random proxies, by the fitness of
        perturbed copies or, with ``initial_generations``, by short searches. The choice matters: in more than half of
        all random bandits, all perturbed copies have the same fitness, so that a search cannot climb."""
        config, factory, seed = self.config, self.factory, self.seed
        if config.start_from is not None:
            if is_teacher(config.start_from):
                return cloned_proxy(config.start_from, factory, seed, self.count_steps)
            return first_parameters(config.start_from, config, factory.spaces, factory.game)
        draws = config.initial_draws
        random_means = factory.initial(Streams([derive_seed(seed, f"initial stand-in {i}") for i in range(draws)]))
        means = [add_visited_states(mean, factory, seed, 0, self.count_steps, scaled=True) for mean in random_means]
        candidates = torch.stack(means)  # [draws, D]
        if draws == 1:
            return candidates[0]
        if config.initial_generations is None:
            return self._best_by_perturbations(candidates)
        return self._best_after_searches(candidates, config.initial_generations)

    def _best_by_perturbations(self, candidates: Tensor) -> Tensor:
        """Return the proxy of ``candidates [C, D]`` whose ``initial_members`` perturbed copies have the highest
        average fitness. One agent trains on each copy. All these agents have one seed, so that they differ only by
        their proxies and their algorithm, which the remainder ``seed % num_implementations`` selects."""
        num_copies, factory = self.config.initial_members, self.factory
        proxies: list[Tensor] = []
        for i, candidate in enumerate(candidates):
            streams = Streams([derive_seed(self.seed, f"initial perturbation {i}")])
            mean = factory.searched_part(candidate)  # the numbers [K] that a search changes
            noise = streams.normal(num_copies, len(mean))[0]  # [copies, K]; 0 is the index of the only stream
            proxies.append(factory.with_searched_part(mean + self.config.noise_std * noise, candidate))
        base_seed = derive_seed(self.seed, "initial agent")
        base_seed -= base_seed % self.num_implementations  # a multiple of `num_implementations`
        copy_seeds = [base_seed + i % self.num_implementations for i in range(num_copies)]
        seeds = copy_seeds * len(candidates)  # all candidates have the same seeds
        scores = objective(self.train(torch.cat(proxies), seeds), self.config)
        fitness = scores.view(-1, num_copies).mean(1).nan_to_num(-torch.inf)  # [C]; NaN if an agent diverged
        return candidates[int(fitness.argmax())]

    def _best_after_searches(self, candidates: Tensor, generations: int) -> Tensor:
        """Search from each of the initial means ``candidates [C, D]``, and return the final mean ``[D]`` of the best
        search. After every ``generations`` generations, the better half continues (successive halving)."""
        strategies: dict[int, Strategy] = {}  # row of ``candidates`` -> the strategy of the search that began there
        for row, candidate in enumerate(candidates):
            mean = self.factory.searched_part(candidate)  # the numbers [K] that a search changes
            strategies[row] = STRATEGIES[self.config.strategy](self.config, mean)
        generations_done = 0
        while len(strategies) > 1:
            scores: dict[int, float] = {}  # row -> fitness in the latest generation
            for _ in range(generations):
                generations_done += 1
                scores = self._search_generation(strategies, candidates, generations_done)
            score_text = ", ".join(f"{score:.4g}" for score in scores.values())
            note(f"after {generations_done} generations {len(strategies)} first searches are at {score_text}")
            half = math.ceil(len(strategies) / 2)
            best_rows = sorted(strategies, key=lambda row: -scores[row])[:half]
            strategies = {row: strategies[row] for row in best_rows}
        (winner,) = strategies  # the only row that is left
        return self.factory.with_searched_part(strategies[winner].mean, candidates[winner])

    def _search_generation(self, strategies: dict[int, Strategy], candidates: Tensor, number: int) -> dict[int, float]:
        """Make generation ``number`` of several searches at once, and move their means. ``strategies`` maps rows of the
        initial means ``candidates [C, D]`` to strategies. Return row -> fitness of the mean before the move."""
        config, factory, seed = self.config, self.factory, self.seed
        name = f"generation {number} of the first searches"
        noise_by_row: dict[int, Tensor] = {}
        all_proxies: list[Tensor] = []
        all_seeds: list[int] = []
        for row, strategy in strategies.items():
            streams = Streams.from_name([seed], f"perturbations of first search {row}, generation {number}")
            noise = streams.normal(strategy.rows, len(strategy.mean))[0]  # 0 is the index of the only stream
            noise_by_row[row] = noise
            population = factory.with_searched_part(strategy.ask(noise), candidates[row])
            mean = factory.with_searched_part(strategy.mean, candidates[row])
            proxies, seeds = generation_agents(population, mean, config, seed, self.num_implementations, number, name)
            all_proxies.append(proxies)
            all_seeds += seeds
        outcome = self.train(torch.cat(all_proxies), all_seeds)
        scores_by_search = objective(outcome, config).chunk(len(strategies))  # all have the same number of agents
        mean_fitness: dict[int, float] = {}
        for row, scores in zip(strategies, scores_by_search, strict=True):
            _, selection_fitness, scores_of_mean = population_fitness(scores, config, config.population)
            mean_fitness[row] = float(scores_of_mean.nanmean().nan_to_num(-torch.inf))  # -inf if all agents diverged
            strategies[row].tell(noise_by_row[row], selection_fitness, mean_fitness[row])
        return mean_fitness
