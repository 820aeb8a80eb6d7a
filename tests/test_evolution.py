"""The evolution strategy under a Lightning trainer, on a quadratic function."""

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from conftest import ROOT
from control.cli.settings import RunConfig, Settings
from control.evolution.generations import InitialSearch, generation_agents, population_fitness
from control.evolution.inner_loop import Outcome
from control.evolution.strategies import STRATEGIES, Archive
from control.lightning.proxy_module import ProxyModule
from envs.make import ProxyFactory
from helpers import different
from models.proxies.synthetic.config import Config

BEST, START = torch.linspace(-1, 1, 12), torch.full((12,), 0.5)
SMALL = Config(population=8, noise_std=0.1, step_size=0.05, eval_every=1, center_agents=1)
FACTORY: Any = ProxyFactory(None, "cartpole")
FACTORY.parameters, FACTORY.initial = SimpleNamespace(size=12), lambda streams: START[None]


def value(points: Tensor) -> Tensor:
    return -(points - BEST).square().sum(-1)


class QuadraticWorkers:
    """Workers with fitness ``-|x - BEST|^2`` of a proxy ``x``; members ``failing`` give NaN."""

    def __init__(self, failing: Sequence[int] = ()):
        self.failing, self.populations = list(failing), []

    def run(self, proxies: Tensor, seeds: list[int], **kwargs: Any) -> Outcome:
        self.populations.append(proxies[:-1])
        returns, ones = value(proxies), torch.ones(len(seeds), dtype=torch.int64)
        returns[self.failing] = torch.nan
        return Outcome(returns[:, None], ones[:, None], torch.zeros(len(returns), 0), ones, ones, 0, 0.0, 0.0)


def search(
    config: Config, folder: Any = None, resume: bool = False, failing: Sequence[int] = (), callbacks: Sequence[Any] = ()
) -> Any:
    settings = Settings(RunConfig(implementation="SE", seed=3, epochs=config.generations), None, proxy=config)
    module = ProxyModule(settings, QuadraticWorkers(failing), FACTORY)  # type: ignore[arg-type]
    trainer = pl.Trainer(
        max_epochs=module.epochs, accelerator="cpu", logger=False, callbacks=list(callbacks),
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, ckpt_path=folder / "search.ckpt" if resume else None, weights_only=True)
    if folder:
        trainer.save_checkpoint(folder / "search.ckpt")
    return module


def test_search_converges_or_ends_with_the_first_solved_mean() -> None:
    config = replace(SMALL, population=24, solved_reward=-0.2, quit_when_solved=True)
    module = search(config)
    assert module.epoch < 100 and module.mean_return >= -0.2 and float(value(module.mean[0])) >= -0.2
    assert module.archive.entries[0][1] == module.epoch
    # A mean solves the task only in tests with the final time limit, here from generation 30 on.
    limits: dict[str, Any] = {"test_limit_first": 5, "test_limit": 10, "test_limit_grows": (1, 30)}
    assert module.epoch < 30 == search(replace(config, **limits)).epoch
    full_search = search(replace(config, quit_when_solved=False))
    assert full_search.epoch == 100 and (full_search.mean[0] - BEST).norm() < 0.2 * (START - BEST).norm()
    best = full_search.archive.entries[0]
    assert best[0] == pytest.approx(float(value(best[2])), abs=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_resumed_search_equals_uninterrupted(strategy: str, tmp_path: Any) -> None:
    config = replace(SMALL, strategy=strategy, weight_decay=0.01)
    six, three = replace(config, generations=6), replace(config, generations=3)
    full_search = search(six)
    search(three, tmp_path)
    second = search(six, tmp_path, resume=True)
    assert second.epoch == 6 and torch.equal(second.mean, full_search.mean)
    assert all(map(torch.equal, second.workers.populations, full_search.workers.populations[3:]))
    assert not list(different(second.archive.entries, full_search.archive.entries))


def test_failed_members_do_not_spread_nan() -> None:
    config = replace(SMALL, generations=3)
    lost = search(config, failing=range(8))
    assert torch.equal(lost.mean[0], START) and float(lost.row["search/failed"]) == 8
    mean = search(config, failing=[0, 5]).mean[0]
    assert mean.isfinite().all() and not torch.equal(mean, START)


def test_archive_keeps_the_best() -> None:
    archive = Archive(2)
    for generation, fitness in enumerate([1.0, 3.0, 2.0, 3.0]):
        archive.offer(fitness, generation, torch.full((2,), float(generation)))
    assert [(fitness, generation) for fitness, generation, _ in archive.entries] == [(3.0, 1), (3.0, 3)]
    assert torch.equal(archive.entries[1][2], torch.full((2,), 3.0))


def test_limit_of_tests_grows_between_two_generations() -> None:
    """From 100 to 1,000 steps between generations 200 and 1,800, as published."""
    config = Config(test_limit_first=100, test_limit=1000, second_phase=500, second_noise_std=0.5)
    table = {1: 100, 200: 100, 201: 100, 202: 101, 600: 325, 1000: 550, 1799: 999, 1800: 1000, 2000: 1000}
    assert {generation: config.generation_settings(generation).test_limit for generation in table} == table
    assert (config.generation_settings(500).noise_std, config.generation_settings(501).noise_std) == (0.05, 0.5)
    assert Config(test_limit=1000).generation_settings(1).test_limit == 1000


def test_agents_of_a_generation() -> None:
    """Two agents for each of three proxies, then one for the mean, whose seed is always its own."""
    population, mean = torch.eye(3), torch.full((3,), 5.0)
    options = {"agents_per_proxy": 2, "center_agents": 1}
    seeds = {}
    for common in (False, True):
        config = Config(common_random_numbers=common, **options)
        proxies, seeds[common] = generation_agents(
            population, mean, config, seed=4, num_implementations=1, number=1, name="first"
        )
        assert torch.equal(proxies, torch.cat([population.repeat_interleave(2, 0), mean[None]]))
    assert len(set(seeds[False])) == 7
    assert seeds[True][:2] == seeds[True][2:4] == seeds[True][4:6] and len(set(seeds[True])) == 3


def test_initial_candidates_have_agents_with_equal_seeds() -> None:
    factory: Any = SimpleNamespace(searched_part=lambda flat: flat, with_searched_part=lambda part, template: part)
    seeds: list[int] = []

    def train(proxies: Tensor, agent_seeds: list[int]) -> Outcome:
        seeds.extend(agent_seeds)
        return QuadraticWorkers().run(proxies, agent_seeds)

    search = InitialSearch(replace(SMALL, initial_members=4), factory, 3, num_implementations=2, train=train)
    assert torch.equal(search._best_by_perturbations(torch.stack([START, BEST, -BEST])), BEST)
    assert seeds[:4] == seeds[4:8] == seeds[8:] and [seed % 2 for seed in seeds[:4]] == [0, 1, 0, 1]


def test_fitness_by_ranks_of_agents_in_the_same_position() -> None:
    """Three proxies with two agents each; the last score is of the mean's agent. One agent has diverged."""
    scores = torch.tensor([1.0, 30.0, 2.0, 10.0, 3.0, torch.nan, 7.0])
    fitness, ranked, of_mean = population_fitness(scores, Config(agents_per_proxy=2), 3)
    torch.testing.assert_close(fitness, torch.tensor([15.5, 6.0, torch.nan]), equal_nan=True)
    torch.testing.assert_close(ranked, fitness, equal_nan=True)
    assert of_mean.tolist() == [7.0]
    fitness, ranked, _ = population_fitness(scores, Config(agents_per_proxy=2, rank_apart=True), 3)
    torch.testing.assert_close(fitness, torch.tensor([15.5, 6.0, torch.nan]), equal_nan=True)
    # Ranks from -0.5 to 0.5: first agents -0.5, 0, 0.5; second agents 0.5, 0, -0.5 (the lowest: diverged).
    torch.testing.assert_close(ranked.float(), torch.tensor([0.0, 0.0, torch.nan]), equal_nan=True)


def test_cma_es_of_the_page_converges_and_resumes(tmp_path: Any) -> None:
    page = (ROOT / "docs" / "how_to" / "evolution.md").read_text()
    (source,) = re.findall(r"^```python\n# my_cma\.py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)

    def cma() -> Any:
        return names["CMAES"](seed=3, population=8, noise_std=0.3)

    full = search(replace(SMALL, generations=100), callbacks=[cma()])
    assert (full.mean[0] - BEST).norm() < 0.05 * (START - BEST).norm()
    six, three = replace(SMALL, generations=6), replace(SMALL, generations=3)
    expected = search(six, callbacks=[cma()])
    search(three, tmp_path, callbacks=[cma()])
    assert torch.equal(search(six, tmp_path, resume=True, callbacks=[cma()]).mean, expected.mean)
