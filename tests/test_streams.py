"""Streams: what a member draws is its own, whoever is beside it."""

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
def test_a_member_draws_the_same_alone(name: str) -> None:
    joint_draws = DRAWS[name](Streams([3, 4, 5]))
    for m, seed in enumerate([3, 4, 5]):
        assert torch.equal(joint_draws[m], DRAWS[name](Streams([seed]))[0])
    assert not torch.equal(joint_draws[0], joint_draws[1])


@pytest.mark.parametrize("name", DRAWS)
def test_members_of_one_seed_draw_once_what_each_would_draw(name: str) -> None:
    shared, plain_streams = lockstep_streams([5, 3, 5, 5, 4], "x"), Streams.from_name([5, 3, 5, 5, 4], "x")
    assert isinstance(shared, SharedStreams) and len(shared) == 5 and len(shared.generators) == 3
    for _ in range(2):
        assert torch.equal(DRAWS[name](shared), DRAWS[name](plain_streams))
    for streams in (shared, plain_streams):
        streams.select([2, 4, 3])
    assert torch.equal(shared.get_state(), plain_streams.get_state()) and len(shared.generators) == 2
    assert torch.equal(DRAWS[name](shared), DRAWS[name](plain_streams))
    restored = lockstep_streams([1, 2, 1], "y")
    restored.set_state(shared.get_state())
    assert torch.equal(DRAWS[name](restored), DRAWS[name](plain_streams))
    assert type(lockstep_streams([1, 2], "x")) is Streams


def test_names_give_unrelated_streams() -> None:
    assert derive_seed(1, "a") != derive_seed(1, "b") and derive_seed(1, "a") != derive_seed(2, "a")
    assert torch.equal(Streams.from_name([7], "x").uniform(4), Streams([derive_seed(7, "x")]).uniform(4))
    # the same numbers on another machine, tomorrow
    assert derive_seed(25, "rollout") == 3696968438


def test_a_fork_moves_on_and_is_not_moved() -> None:
    streams = Streams([1])
    first, second = streams.fork(), streams.fork()
    assert not torch.equal(first.uniform(4), second.uniform(4))
    other = Streams([1])
    other.fork().uniform(1000)
    other.fork()
    assert torch.equal(other.uniform(4), streams.uniform(4))


def test_integers_keep_each_members_bound() -> None:
    integers = Streams([1, 2]).integers([2, 500], 4000)
    assert integers[0].unique().tolist() == [0, 1] and integers[1].max() > 400 and integers.max() < 500


def blocks(seeds: list[int], steps: int = 128) -> NoiseBlocks:
    draws: list[Draw] = [
        (Streams.uniform, {"a": (10,), "b": (2, 3)}), (Streams.gumbel, {"c": (5,)}), (Streams.uniform, {"d": (1,)}),
    ]  # fmt: skip
    return NoiseBlocks(Streams(seeds), draws, steps)


def test_numbers_of_steps_are_shaped_as_asked_and_never_come_twice() -> None:
    alone, pair_blocks = blocks([3]), blocks([9, 3])
    shapes = {"a": (1, 10), "b": (1, 2, 3), "c": (1, 5), "d": (1, 1)}
    rows = []
    for _ in range(150):
        step, company = alone.next(), pair_blocks.next()
        assert {name: tuple(part.shape) for name, part in step.items()} == shapes
        assert all(torch.equal(part[0], company[name][1]) for name, part in step.items())
        rows.append(torch.cat([part.flatten() for part in step.values()]))
    numbers = torch.stack(rows)
    assert len(numbers.unique(dim=0)) == 150 and (numbers[:, :16] < 1).all() and (numbers[:, :16] >= 0).all()


def test_a_block_is_one_draw_after_another() -> None:
    """Numbers that share a draw lie side by side in it, step after step."""
    noise, streams = blocks([4, 5], steps=3), Streams([4, 5])
    first, second, third = streams.uniform(3, 16), streams.gumbel(3, 5), streams.uniform(3, 1)
    for step in range(3):
        numbers = noise.next()
        assert torch.equal(torch.cat((numbers["a"], numbers["b"].flatten(1)), 1), first[:, step])
        assert torch.equal(numbers["c"], second[:, step]) and torch.equal(numbers["d"], third[:, step])


@pytest.mark.parametrize("used", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("early", [False, True])
def test_noise_goes_on_from_its_state_and_with_some_members(used: int, early: bool) -> None:
    full_blocks, resumed, selected_blocks = blocks([1, 2, 3], 8), blocks([0, 0, 0], 8), blocks([1, 2, 3], 8)
    plain = blocks([1, 2, 3], 8)
    for _ in range(used):
        full_blocks.next(), selected_blocks.next(), plain.next()
    if early:  # the next block is drawn already
        full_blocks.prepare(), selected_blocks.prepare()
    resumed.load_state_dict(full_blocks.state_dict())
    selected_blocks.select(torch.tensor([2, 0]))
    for _ in range(10):
        full_noise, resumed_noise, selected_noise, same = (
            full_blocks.next(),
            resumed.next(),
            selected_blocks.next(),
            plain.next(),
        )
        for name, part in full_noise.items():
            assert torch.equal(part, resumed_noise[name]) and torch.equal(part[[2, 0]], selected_noise[name])
            assert torch.equal(part, same[name])
