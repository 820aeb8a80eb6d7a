"""Draws, divergences and exploration of the model-generalisation family, against hand-worked numbers and torch's
distributions."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Categorical, Normal, kl_divergence

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.latents import latents
from models.agents.model_generalisation.networks import pick, with_action
from models.agents.model_generalisation.values import exploration_noise, explore
from models.streams import Streams

CPU = torch.device("cpu")
BELOW_ONE = 1 - 2**-24  # the largest number that `torch.rand` gives


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- picking a class ---------------------------------------------------------------------------------------------------


def test_pick_is_the_inverse_of_the_distribution_function() -> None:
    """Shares [0, 1/4), nothing, [1/4, 3/4) and [3/4, 1)."""
    probability = torch.tensor([0.25, 0.0, 0.5, 0.25])
    table = {0.0: 0, 0.2499: 0, 0.25: 2, 0.5: 2, 0.7499: 2, 0.75: 3, 0.99: 3, BELOW_ONE: 3}
    uniform = torch.tensor(list(table))
    assert pick(probability.expand(len(table), 4), uniform).tolist() == list(table.values())


@pytest.mark.parametrize(
    ("probability", "first", "last"),
    [([1.0, 0.0, 0.0], 0, 0), ([0.0, 1.0, 0.0], 1, 1), ([0.0, 0.0, 1.0], 2, 2), ([0.0, 0.5, 0.5], 1, 2)],
)
def test_pick_never_takes_what_has_no_probability(probability: list[float], first: int, last: int) -> None:
    given = torch.tensor(probability)
    assert pick(given, torch.tensor(0.0)).item() == first
    assert pick(given, torch.tensor(BELOW_ONE)).item() == last


def test_pick_leaves_what_rounding_leaves_over_to_the_last_class() -> None:
    """Ten times 0.0999 is 0.999; a number above it is class 9, not 10."""
    assert pick(torch.full((10,), 0.0999), torch.tensor(BELOW_ONE)).item() == 9


def test_pick_over_a_grid_is_as_frequent_as_it_is_probable() -> None:
    probability = torch.tensor([0.1, 0.35, 0.05, 0.5])
    grid = (torch.arange(1000) + 0.5) / 1000
    assert torch.bincount(pick(probability.expand(1000, 4), grid)).tolist() == [100, 350, 50, 500]


def test_an_action_is_appended_as_a_one() -> None:
    x = torch.tensor([[[7.0, 8.0], [9.0, 10.0]]])
    assert with_action(x, torch.tensor([[2, 0]]), 3).tolist() == [[[7, 8, 0, 0, 1], [9, 10, 1, 0, 0]]]


# -- exploration -------------------------------------------------------------------------------------------------------


def test_gumbel_numbers_make_a_softmax() -> None:
    """With E = -log u the Gumbel number is -log E, and the best of value / T - log E is the least of E / p: the first
    of exponential clocks with rates p. For two actions, over a grid of u it is theirs as often as the softmax says."""
    config = Config(softmax_temp=0.5)
    assert exploration_noise(config, 2) == (Streams.gumbel, 2)
    values = torch.tensor([0.3, -0.4])
    side = 1000
    u = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    clocks = -torch.cartesian_prod(u, u).log()
    chosen = explore(config, values.double().expand(1, side**2, 2), -clocks.log()[None])
    share = (values / 0.5).softmax(0)  # 0.802, 0.198
    assert torch.equal(chosen[0], (clocks / share).argmin(1))
    assert chosen.double().mean().item() == pytest.approx(share[1].item(), abs=1e-3)


@pytest.mark.parametrize("temperature", [0.0125, 0.4, 12.8])
def test_softmax_at_the_temperature(temperature: float) -> None:
    values, count = torch.tensor([0.5, 0.51, 0.2, 0.49]), 40_000
    numbers = Streams([5]).gumbel(count, 4)
    chosen = explore(Config(softmax_temp=temperature), values.expand(1, count, 4), numbers)
    expected = ((values.double() / temperature).softmax(0) * count).numpy()
    often = expected > 5
    seen = torch.bincount(chosen[0], minlength=4).double().numpy()
    assert seen[~often].sum() < 30
    assert stats.chisquare(seen[often], expected[often] * seen[often].sum() / expected[often].sum()).pvalue > 1e-3


def test_epsilon_greedy_over_a_grid() -> None:
    """The first number says whether, below 0.3; the second which, each of four a quarter of them. Action 2 is best."""
    config = Config(exploration_strat="epsilon_greedy", epsilon=0.3)
    assert exploration_noise(config, 4) == (Streams.uniform, 2)
    grid = (torch.arange(100) + 0.5) / 100
    chosen = explore(
        config, torch.tensor([0.0, 1.0, 5.0, 4.0]).expand(1, 100**2, 4), torch.cartesian_prod(grid, grid)[None]
    )
    assert torch.bincount(chosen[0]).tolist() == [750, 750, 7750, 750]


@pytest.mark.parametrize(
    ("epsilon", "first", "second", "action"),
    [(0.0, 0.0, 0.0, 1), (1.0, BELOW_ONE, 0.0, 0), (1.0, 0.0, BELOW_ONE, 2), (0.5, 0.5, 0.0, 1)],
)
def test_epsilon_greedy_at_its_ends(epsilon: float, first: float, second: float, action: int) -> None:
    config = Config(exploration_strat="epsilon_greedy", epsilon=epsilon)
    values = torch.tensor([[[0.0, 3.0, 3.0]]])  # of equal values the first
    assert explore(config, values, torch.tensor([[[first, second]]])).item() == action


# -- latents -----------------------------------------------------------------------------------------------------------

TWO = Config(latent_type="categorical", num_features=2, feature_width=3)


def test_a_categorical_latent_is_one_hot_by_its_logits() -> None:
    """Probabilities 1/6, 1/3, 1/2 of the first variable, 1/2, 1/4, 1/4 of the second."""
    kind = latents(TWO)
    assert (kind.outputs, kind.size, kind.features, kind.normal) == (6, 6, 2, False)
    logits = torch.tensor([1.0, 2.0, 3.0, 2.0, 1.0, 1.0]).log().expand(1, 4, 6)
    uniform = torch.tensor([[[0.1, 0.6], [0.4, 0.1], [0.6, 0.9], [0.0, BELOW_ONE]]])
    sample = kind.draw(kind.params(logits, encoder=True), uniform)
    assert sample.tolist() == [[[1, 0, 0, 0, 1, 0], [0, 1, 0, 1, 0, 0], [0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 1]]]


def test_gradients_go_straight_through_a_categorical_draw() -> None:
    """Forward the one-hot vector, backward the probabilities: g -> p (g - g.p) of each variable."""
    kind, weight = latents(TWO), torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, 1.0])
    logits = torch.tensor([1.0, 2.0, 3.0, 2.0, 1.0, 1.0]).log().view(1, 1, 6).requires_grad_()
    sample = kind.draw(kind.params(logits, encoder=False), torch.tensor([[[0.6, 0.1]]]))
    torch.testing.assert_close(sample.detach()[0, 0], torch.tensor([0.0, 0, 1, 1, 0, 0]), rtol=0, atol=1e-7)
    (sample * weight).sum().backward()
    p = torch.tensor([[1 / 6, 1 / 3, 1 / 2], [1 / 2, 1 / 4, 1 / 4]])
    g = weight.view(2, 3)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.view(2, 3), p * (g - (p * g).sum(1, keepdim=True)))


@pytest.mark.parametrize(
    ("std_act", "raw", "deviation"),
    [
        ("softplus", 0.0, math.log(2)), ("softplus", 2.0, math.log1p(math.exp(2))), ("softplus", -200.0, 1e-6),
        ("sigmoid", 0.0, 0.5), ("sigmoid", math.log(3), 0.75), ("sigmoid", -200.0, 1e-6),
        ("sigmoid2", 0.0, 1.0), ("sigmoid2", 2 * math.log(3), 1.5), ("sigmoid2", -400.0, 1e-6),
    ],
)  # fmt: skip
def test_deviations(std_act: str, raw: float, deviation: float) -> None:
    """Never below 1e-6; the encoder's have ``min_std`` on top."""
    kind = latents(Config(latent_type="gaussian", num_features=1, std_act=std_act, min_std=0.25))
    assert (kind.outputs, kind.size, kind.features, kind.normal) == (2, 1, 1, True)
    outputs = torch.tensor([[[0.7, raw]]])
    for encoder, more in ((False, 0.0), (True, 0.25)):
        mean, found = kind.params(outputs, encoder=encoder)
        assert mean.item() == pytest.approx(0.7) and found.item() == pytest.approx(deviation + more, rel=1e-5)


@pytest.mark.parametrize("latent_type", ["gaussian", "tanh_gaussian"])
def test_a_gaussian_draw_is_its_mean_and_deviation(latent_type: str) -> None:
    kind = latents(Config(latent_type=latent_type, num_features=2))
    parts = torch.tensor([[[0.5, -1.0]]]).requires_grad_(), torch.tensor([[[0.1, 2.0]]]).requires_grad_()
    sample = kind.draw(parts, torch.tensor([[[3.0, -0.5]]]))
    before, slope = torch.tensor([0.8, -2.0]), torch.ones(2)
    if latent_type == "tanh_gaussian":
        slope, before = 1 - before.tanh() ** 2, before.tanh()
    torch.testing.assert_close(sample.detach()[0, 0], before)
    sample.sum().backward()
    torch.testing.assert_close(parts[0].grad[0, 0], slope)  # type: ignore[index]
    torch.testing.assert_close(parts[1].grad[0, 0], slope * torch.tensor([3.0, -0.5]))  # type: ignore[index]


@pytest.mark.parametrize("latent_type", ["categorical", "gaussian", "tanh_gaussian"])
def test_divergences_are_those_of_torch_summed_over_variables(latent_type: str) -> None:
    """Those of tanh are before it."""
    kind = latents(Config(latent_type=latent_type, num_features=5, feature_width=4, std_act="sigmoid", min_std=0.1))
    parts = [kind.params(3 * drawn(2, 7, kind.outputs, seed=seed), encoder=True) for seed in (0, 1)]
    if latent_type == "categorical":
        p, q = (Categorical(logits=part[0]) for part in parts)
        base: Any = Categorical(logits=torch.zeros(4))
    else:
        p, q = (Normal(*part) for part in parts)  # type: ignore[assignment]
        base = Normal(0.0, 1.0)
    torch.testing.assert_close(kind.kl(*parts), kl_divergence(p, q).sum(2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(kind.kl_to_base(parts[0]), kl_divergence(p, base).sum(2), rtol=1e-5, atol=1e-5)
    assert not kind.kl(parts[0], parts[0]).abs().max() > 1e-6 and kind.kl(*parts).min() > 0.1


def test_settings_name_what_is_here() -> None:
    for latent_type, std_act in itertools.product(
        *(Config.__dataclass_fields__[name].metadata["choices"] for name in ("latent_type", "std_act"))
    ):
        config = dataclasses.replace(Config(), latent_type=latent_type, std_act=std_act)
        assert latents(config).size == (1024 if latent_type == "categorical" else 32)
