"""One generation of a search: its agents and proxies, and the fitness from their scores. Also the initial mean of a
search, which can be the best of several candidates.

P is the size of the population, N the number of agents, and D the number of parameters of a proxy.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from control.cli.colour import note
from control.evolution.fitness_shaping import centred_ranks
from control.evolution.inner_loop import Outcome, fresh_seeds
from control.evolution.objectives import objective
from control.evolution.strategies import STRATEGIES, Strategy
from control.evolution.teachers import Spent, cloned, is_teacher, visited
from envs.make import Stages
from models.proxies.files import first_parameters
from models.proxies.search import SearchConfig
from models.streams import Streams, derive_seed

Train = Callable[[Tensor, list[int]], Outcome]
"""Trains and tests fresh agents of seeds ``[N]`` on proxies ``[N, D]``, by the settings of the first phase."""


def with_visited_states(
    mean: Tensor, stages: Stages, game: str, seed: int, generation: int, spent: Spent, scaled: bool = False
) -> Tensor:
    """Return the ``mean [D]`` before a generation, with initial states from episodes of its target policy, if the
    settings ask for that (`Stages.with_visited_states`). ``spent`` is called with the number of real steps."""
    state_seed = derive_seed(seed, f"states of generation {generation}")
    return stages.with_visited_states(
        mean, lambda act, count, limit: visited(act, game, count, state_seed, limit, spent), scaled
    )


def generation_agents(
    population: Tensor, mean: Tensor | None, config: SearchConfig, seed: int, kinds: int, number: int, name: str
) -> tuple[Tensor, list[int]]:
    """Return the proxies ``[N, D]`` and the seeds ``[N]`` of a generation's agents: ``agents_per_proxy`` agents for
    each proxy of the ``population [P, D]``, then ``center_agents`` for the ``mean [D]`` unless it is None.

    ``kinds`` is the number of agent implementations, ``number`` the generation's number from 1. Different values of
    ``name`` give unrelated seeds.
    """
    repeats = len(population) if config.common_random_numbers else 1
    kind = (number - 1) % kinds if config.agents_take_turns == "generations" else None
    count = len(population) * config.agents_per_proxy // repeats
    seeds = fresh_seeds(seed, name, count, kinds, kind) * repeats
    proxies = population.repeat_interleave(config.agents_per_proxy, 0)
    if mean is None:
        return proxies, seeds
    proxies = torch.cat([proxies, mean.expand(config.center_agents, -1)])
    return proxies, seeds + fresh_seeds(seed, f"centre of {name}", config.center_agents, kinds)


def judged(scores: Tensor, config: SearchConfig, population: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split ``scores [N]`` of agents, in the order of `entered`, for a ``population`` of size P. Return the fitness
    ``[P]``, the values ``[P]`` for the strategy (mean ranks if ``rank_apart``), and the scores of agents of the mean.
    """
    agents = population * config.agents_per_proxy
    by_agent, of_mean = scores[:agents].view(population, -1), scores[agents:]
    fitness = ranked = by_agent.mean(1)
    if config.rank_apart:
        ranked = torch.stack([centred_ranks(column) for column in by_agent.unbind(1)]).mean(0)
        ranked = ranked.masked_fill(~fitness.isfinite(), torch.nan)
    return fitness, ranked, of_mean


def first_mean(
    config: SearchConfig,
    stages: Stages,
    game: str,
    seed: int,
    kinds: int,
    train: Train,
    spent: Spent = lambda steps: None,
) -> Tensor:
    """Return the initial mean ``[D]`` of a search: the proxy that ``start_from`` names (or a proxy cloned from that
    policy), or the best of ``initial_draws`` random proxies. These are compared by the fitness of perturbed copies or,
    with ``initial_generations``, by short searches.

    The choice matters, because more than half of random bandits are flat: perturbations do not change the fitness.
    ``spent`` is called with numbers of real steps, except for tests of agents.
    """
    draws, members = config.initial_draws, config.initial_members
    if config.start_from is not None:
        if is_teacher(config.start_from):
            return cloned(config.start_from, stages, game, seed, spent)
        return first_parameters(config.start_from, config, stages.spaces, game)
    first = stages.initial(Streams([derive_seed(seed, f"initial stand-in {i}") for i in range(draws)]))
    first = torch.stack([with_visited_states(mean, stages, game, seed, 0, spent, scaled=True) for mean in first])
    if draws == 1:
        return first[0]
    if config.initial_generations is not None:
        return _furthest(first, config, stages, config.initial_generations, seed, kinds, train)
    noise = Streams([derive_seed(seed, f"initial perturbation {i}") for i in range(draws)])
    search_means = torch.stack([stages.searched_part(mean) for mean in first])
    around = search_means.unsqueeze(1) + config.noise_std * noise.normal(members, search_means.shape[1])
    copies = torch.cat(
        [stages.with_searched_part(perturbed, mean) for perturbed, mean in zip(around, first, strict=True)]
    )
    agent = derive_seed(seed, "initial agent")
    agents = [agent - agent % kinds + i % kinds for i in range(members)] if kinds > 1 else [agent]
    agents = agents * (draws * members // len(agents))
    outcome = train(copies, agents)
    fitness = objective(outcome, config).view(draws, members).mean(1).nan_to_num(-torch.inf)
    return first[int(fitness.argmax())]


def _furthest(
    first: Tensor, config: SearchConfig, stages: Stages, generations: int, seed: int, kinds: int, train: Train
) -> Tensor:
    """Return the final mean ``[D]`` of the best search from the initial means ``first [N, D]``. After every
    ``generations`` generations the better half continues (successive halving), because some initial means are on a
    plateau."""
    running = {i: STRATEGIES[config.strategy](config, stages.searched_part(mean)) for i, mean in enumerate(first)}
    done = 0
    while len(running) > 1:
        scores: dict[int, float] = {}
        for number in range(done + 1, done + generations + 1):
            scores = _climb(running, first, config, stages, seed, kinds, number, train)
        done += generations
        score_text = ", ".join(f"{score:.4g}" for score in scores.values())
        note(f"after {done} generations {len(running)} first searches are at {score_text}")
        best = sorted(running, key=lambda i: -scores[i])[: -(-len(running) // 2)]  # a stable sort
        running = {i: running[i] for i in best}
    (winner,) = running
    return stages.with_searched_part(running[winner].mean, first[winner])


def _climb(
    running: dict[int, Strategy],
    first: Tensor,
    config: SearchConfig,
    stages: Stages,
    seed: int,
    kinds: int,
    number: int,
    train: Train,
) -> dict[int, float]:
    """Make generation ``number`` of every search in ``running`` (row of ``first [N, D]`` -> strategy). Return the
    scores of their means, by row."""
    name, noises, jobs = f"generation {number} of the first searches", {}, []
    for i, strategy in running.items():
        streams = Streams.from_name([seed], f"perturbations of first search {i}, generation {number}")
        noises[i] = streams.normal(strategy.rows, len(strategy.mean))[0]
        population, mean = (
            stages.with_searched_part(parameters, first[i]) for parameters in (strategy.ask(noises[i]), strategy.mean)
        )
        jobs.append(generation_agents(population, mean, config, seed, kinds, number, name))
    outcome = train(
        torch.cat([proxies for proxies, _ in jobs]), [agent_seed for _, seeds in jobs for agent_seed in seeds]
    )
    parts = objective(outcome, config).chunk(len(jobs))
    scores = {}
    for (i, strategy), part in zip(running.items(), parts, strict=True):
        _, ranked, of_mean = judged(part, config, config.population)
        scores[i] = float(of_mean.nanmean().nan_to_num(-torch.inf))
        strategy.tell(noises[i], ranked, scores[i])
    return scores
