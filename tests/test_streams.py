"""Random streams: the numbers of a member do not depend on other members."""

import pytest
import torch

from models.streams import Draw, NoiseBlocks, SharedStreams, Streams, derive_seed, lockstep_streams

DRAWS = {
    "uniform": lambda s: s.uniform(37),
    "normal": lambda s: s.normal(37),
    "gumbel": lambda s: s.gumbel(37),
    "integers": lambda s: s.integers(1000, 37),
    "episode_seeds": lambda s: s.episode_seeds(3, 5),
    "fork": lambda s: s.fork().normal(5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_shared_streams_equal_separate_streams(name: str) -> None:
    shared, plain_streams = lockstep_streams([5, 3, 5, 5, 4], "x"), Streams.from_name([5, 3, 5, 5, 4], "x")
    assert isinstance(shared, SharedStreams) and len(shared) == 5 and len(shared.generators) == 3
    for _ in range(2):
        assert torch.equal(DRAWS[name](shared), DRAWS[name](plain_streams))
    restored = lockstep_streams([1, 2, 1, 1, 4], "y")
    restored.set_state(shared.get_state())
    assert torch.equal(DRAWS[name](restored), DRAWS[name](plain_streams))
    assert type(lockstep_streams([1, 2], "x")) is Streams


def test_names_derive_different_seeds() -> None:
    assert derive_seed(1, "a") != derive_seed(1, "b") and derive_seed(1, "a") != derive_seed(2, "a")
    assert torch.equal(Streams.from_name([7], "x").uniform(4), Streams([derive_seed(7, "x")]).uniform(4))
    # The same on every machine.
    assert derive_seed(25, "rollout") == 3696968438


def test_neighbouring_seeds_share_no_episode_seed() -> None:
    """Ten neighbouring runs, each with a hundred episodes in four environments."""
    seeds = Streams.from_name(list(range(10)), "rollout").episode_seeds(4, 100)
    assert seeds.unique().numel() == 10 * 4 * 100


def test_forks_are_independent() -> None:
    streams = Streams([1])
    first, second = streams.fork(), streams.fork()
    assert not torch.equal(first.uniform(4), second.uniform(4))
    other = Streams([1])
    other.fork().uniform(1000)
    other.fork()
    assert torch.equal(other.uniform(4), streams.uniform(4))


def test_integers_have_bounds_per_member() -> None:
    integers = Streams([1, 2]).integers([2, 500], 4000)
    assert integers[0].unique().tolist() == [0, 1] and integers[1].max() > 400 and integers.max() < 500


def blocks(seeds: list[int], steps: int = 128) -> NoiseBlocks:
    draws: list[Draw] = [
        (Streams.uniform, {"a": (10,), "b": (2, 3)}), (Streams.gumbel, {"c": (5,)}), (Streams.uniform, {"d": (1,)}),
    ]  # fmt: skip
    return NoiseBlocks(Streams(seeds), draws, steps)


def test_noise_blocks_are_in_the_order_of_their_draws() -> None:
    """Numbers of one draw are adjacent, step by step."""
    noise, streams = blocks([4, 5], steps=3), Streams([4, 5])
    first, second, third = streams.uniform(3, 16), streams.gumbel(3, 5), streams.uniform(3, 1)
    for step in range(3):
        numbers = noise.next()
        assert torch.equal(torch.cat((numbers["a"], numbers["b"].flatten(1)), 1), first[:, step])
        assert torch.equal(numbers["c"], second[:, step]) and torch.equal(numbers["d"], third[:, step])


@pytest.mark.parametrize("used", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("early", [False, True])
def test_noise_blocks_resume(used: int, early: bool) -> None:
    full, plain, resumed = (blocks(seeds, 8) for seeds in ([1, 2, 3], [1, 2, 3], [0, 0, 0]))
    for _ in range(used):
        full.next(), plain.next()
    if early:  # draws the next block
        full.prepare()
    resumed.load_state_dict(full.state_dict())
    for _ in range(10):
        others = [resumed.next(), plain.next()]
        for name, numbers in full.next().items():
            assert all(torch.equal(other[name], numbers) for other in others)
