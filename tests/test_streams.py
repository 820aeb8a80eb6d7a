"""Streams: what a member draws is its own, whoever is beside it."""

import pytest
import torch

from models.streams import Streams, derive_seed

DRAWS = {
    "uniform": lambda s: s.uniform(37),
    "normal": lambda s: s.normal(37),
    "gumbel": lambda s: s.gumbel(37),
    "integers": lambda s: s.integers(1000, 37),
    "episode_seeds": lambda s: s.episode_seeds(3, 5),
    "fork": lambda s: s.fork().normal(5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_member_draws_the_same_alone(name: str) -> None:
    together = DRAWS[name](Streams([3, 4, 5]))
    for m, seed in enumerate([3, 4, 5]):
        assert torch.equal(together[m], DRAWS[name](Streams([seed]))[0])
    assert not torch.equal(together[0], together[1])


def test_names_give_unrelated_streams() -> None:
    assert derive_seed(1, "a") != derive_seed(1, "b") and derive_seed(1, "a") != derive_seed(2, "a")
    assert torch.equal(Streams.named([7], "x").uniform(4), Streams([derive_seed(7, "x")]).uniform(4))
    # the same numbers on another machine, tomorrow
    assert derive_seed(25, "rollout") == 3696968438


def test_state_goes_on_where_it_was() -> None:
    streams = Streams([1, 2])
    streams.normal(3)
    state = streams.get_state()
    expected = streams.normal(5)
    other = Streams([8, 9])
    other.set_state(state)
    assert torch.equal(other.normal(5), expected)


def test_a_fork_moves_on_and_is_not_moved() -> None:
    streams = Streams([1])
    first, second = streams.fork(), streams.fork()
    assert not torch.equal(first.uniform(4), second.uniform(4))
    other = Streams([1])
    other.fork().uniform(1000)
    other.fork()
    assert torch.equal(other.uniform(4), streams.uniform(4))


def test_integers_keep_each_members_bound() -> None:
    drawn = Streams([1, 2]).integers([2, 500], 4000)
    assert drawn[0].unique().tolist() == [0, 1] and drawn[1].max() > 400 and drawn.max() < 500


def test_gumbel_draws_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0])
    drawn = (logits + Streams([0]).gumbel(40_000, 3)[0]).argmax(-1)
    shares = drawn.bincount(minlength=3) / 40_000
    torch.testing.assert_close(shares, logits.softmax(0), rtol=0, atol=0.01)
    assert Streams([0]).gumbel(100_000).isfinite().all()
