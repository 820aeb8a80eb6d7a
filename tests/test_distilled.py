"""Bandits of a few pairs of state and action, which are what is searched for."""

from typing import Any

import pytest
import torch

from control.cli import parse
from envs.make import stages_of
from models.streams import Streams
from test_teachers import make_clone


def stages(game: str, *extra_flags: str) -> Any:
    agent = ["--agent", "TD3"] if game == "pendulum" else []
    words = ["--implementation", "SE", "--gamename", game, "--proxy", "bandit", "--preset", "distilled", *agent]
    return stages_of(parse.parse([*words, *extra_flags]).proxy, game)


@pytest.mark.parametrize(("game", "numbers"), [("cartpole", 4 + 2), ("pendulum", 3 + 1)])
def test_a_target_says_what_the_pairs_say_and_is_the_same_in_company(game: str, numbers: int) -> None:
    search_stages = stages(game, "--pairs", "5")
    template = search_stages.initial(Streams([3]))[0]
    searched = search_stages.searched_part(template) + 0.5 * Streams([4]).normal(4, 5 * numbers)[0]
    assert (
        searched.shape == (4, 5 * numbers)
        and not search_stages.searched_part(template).view(5, -1)[:, numbers - 1].any()
    )
    flat = search_stages.with_searched_part(searched, template)
    for searched_row, row in zip(searched, flat, strict=True):
        assert torch.equal(search_stages.with_searched_part(searched_row, template), row)
    fixed, first = search_stages.parameters.fixed(flat), search_stages.parameters.fixed(template[None])
    assert fixed["states.table"].shape == (4, 5, search_stages.parameters.state_size)
    for name in ("target.center", "target.spread"):
        assert torch.equal(fixed[name], first[name].expand_as(fixed[name]))
    restored = torch.stack([search_stages.searched_part(row) for row in flat])
    expected = searched.view(4, 5, -1).clone()
    if game == "pendulum":
        expected[..., 3:].clamp_(-1, 1)
    torch.testing.assert_close(restored.view(4, 5, -1), expected, atol=0.05, rtol=0)


def test_first_weights_are_those_of_the_stream() -> None:
    search_stages = stages("cartpole", "--pairs", "5")
    template = search_stages.initial(Streams([3]))[0]
    searched = (search_stages.searched_part(template) + 0.5 * Streams([4]).normal(30)[0]).expand(2, -1)
    flat = search_stages.train_on_pairs(searched, template, Streams([7, 8]))
    assert torch.equal(flat[0], search_stages.train_on_pairs(searched[:1], template, Streams([7]))[0])
    assert torch.equal(*search_stages.parameters.fixed(flat)["states.table"]) and not torch.equal(*flat)


def test_a_search_may_start_from_what_a_policy_does() -> None:
    search_stages, flat = make_clone("cartpole", "test_teachers:balance", "--pairs", "6")
    pairs = search_stages.searched_part(flat).view(6, 6)
    states = search_stages.parameters.fixed(flat[None])["states.table"][0]
    margins = states @ torch.tensor([0.5, 1.0, 10.0, 2.0])
    expected_actions = (margins > 0).long()
    assert torch.equal(pairs[:, 4:].argmax(1), expected_actions)
    clear = margins.abs() > 0.2  # near 0 the policy changes its action
    assert clear.sum() >= 4
    torch.testing.assert_close(pairs[clear, 4:], torch.eye(2)[expected_actions[clear]], atol=0.05, rtol=0)
