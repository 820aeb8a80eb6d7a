"""Varied hyperparameters: their distributions, and which agents share a program."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from helpers import loop_of, tiny
from models.agents.ddqn.config import Config
from models.varied import groups, sample_config

VARIED = Config(vary_hp=True, lr=1e-3, batch_size=128, hidden_sizes=(128, 128))


def draws(config: Config = VARIED, count: int = 3000) -> list[Config]:
    return [sample_config(config, seed) for seed in range(count)]


def test_distributions_match_published() -> None:
    """lr 3.3e-4 .. 3e-3, batch and width 42 .. 384, both log-uniform, and depth 1 .. 3 uniform."""
    configs = draws()
    rates = np.log([config.lr / (1e-3 / 3) for config in configs]) / math.log(9)
    assert 0 <= rates.min() < 0.01 and 0.99 < rates.max() <= 1
    assert stats.kstest(rates, "uniform").pvalue > 1e-3
    spread = np.random.default_rng(0)
    for values in ([config.batch_size for config in configs], [config.hidden_sizes[0] for config in configs]):
        samples = np.array(values)
        assert samples.min() == 42 and 380 <= samples.max() <= 384
        # An integer k represents [k, k + 1): spread over it, the numbers are log-uniform again.
        smooth = samples * ((samples + 1) / samples) ** spread.random(len(samples))
        assert stats.kstest(np.log(smooth / 42) / math.log(385 / 42), "uniform").pvalue > 1e-3
    table = [[c.lr, math.log(c.batch_size), math.log(c.hidden_sizes[0]), len(c.hidden_sizes)] for c in configs]
    assert np.abs(np.corrcoef(np.transpose(table)) - np.eye(4)).max() < 0.07
    depths = np.bincount([len(config.hidden_sizes) for config in configs], minlength=4)
    assert depths[0] == 0 and len(depths) == 4 and stats.chisquare(depths[1:]).pvalue > 1e-3
    from_one = [len(config.hidden_sizes) for config in draws(Config(vary_hp=True, hidden_sizes=(64,)))]  # 0 counts as 1
    assert set(from_one) == {1, 2} and from_one.count(2) / len(from_one) == pytest.approx(1 / 3, abs=0.04)


@pytest.mark.parametrize("base", [1, 2, 5])
def test_ranges_of_small_numbers(base: int) -> None:
    batch_sizes = {config.batch_size for config in draws(Config(vary_hp=True, batch_size=base), 2000)}
    assert batch_sizes == set(range(max(1, base // 3), 3 * base + 1))


def test_sample_depends_on_seed_and_vary() -> None:
    assert sample_config(VARIED, 5) == sample_config(VARIED, 5) != sample_config(VARIED, 6)
    lr_only = Config(vary_hp=True, vary=("lr",), hidden_sizes=(70,))
    for seed in range(20):
        config = sample_config(lr_only, seed)
        assert config.lr == sample_config(Config(vary_hp=True), seed).lr != lr_only.lr
        assert (config.batch_size, config.hidden_sizes) == (lr_only.batch_size, (70,))
    assert sample_config(Config(), 5) is not None and sample_config(Config(), 5) == Config()


@pytest.mark.parametrize("config", [VARIED, Config(vary_hp=True, vary=("lr",)), Config()], ids=["all", "lr", "none"])
def test_groups_partition_members_by_shape(config: Config) -> None:
    seeds = [7 * i + 3 for i in range(200)]
    seed_groups = groups(config, seeds)
    assert sorted(position for group in seed_groups for position in group) == list(range(200))
    configs = [sample_config(config, seed) for seed in seeds]
    shapes = [{(configs[i].hidden_sizes, configs[i].batch_size) for i in group} for group in seed_groups]
    assert all(len(of_group) == 1 for of_group in shapes) and len(set.union(*shapes)) == len(seed_groups)
    assert (len(seed_groups) == 1) == (config is not VARIED)
    assert all(group == sorted(group) for group in seed_groups)
    assert groups(config, []) == []


def test_results_of_groups_are_in_the_order_of_members() -> None:
    config = tiny("DDQN", vary_hp=True, vary=("lr", "batch_size"))
    loop = loop_of("DDQN", "cartpole", 25, 8, config, steps_per_epoch=30)
    order = torch.cat([group.members for group in loop.groups])
    assert not torch.equal(order, order.argsort())
    rates = [sample_config(config, seed).lr for seed in loop.seeds]
    assert loop.epoch()["train/learning_rate"].tolist() == pytest.approx(rates)
