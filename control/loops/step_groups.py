"""The loop of agents that learn between steps: an epoch is so many steps of every member."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from control.loops.loop import Loop, finite, joined, rounds
from control.loops.rollout import Episodes, rollout
from control.loops.steps import StepLoop
from envs.base import Environment
from models.contract import Policy
from models.family import StepSchedule
from models.streams import Streams


@dataclass
class Group:
    """Members that share one tensor program; ``at [m]`` is their place among the run's."""

    at: Tensor
    loop: StepLoop
    evaluation: Environment


class StepGroups(Loop):
    """`Loop` of members that learn step by step.

    Members whose networks have different shapes (``vary_hp``) are several groups, trained one after another; what a
    member learns depends on neither. An epoch has ``steps_per_epoch`` steps of every member, rounded up to whole steps
    of its E environments; episodes go on from epoch to epoch. ``budget`` is how many steps a member has in the run.
    """

    evaluation_modes = ("greedy",)

    def __init__(self, groups: list[Group], seeds: list[int], schedule: StepSchedule, epochs: int, game: str = ""):
        super().__init__([group.loop.agent for group in groups], seeds, game, schedule.eval_episodes)
        self.groups, self.schedule, self.envs = groups, schedule, groups[0].loop.agent.envs
        self.steps = -(-schedule.steps_per_epoch // self.envs)  # in an epoch, of all environments at once
        self.budget = epochs * self.steps * self.envs
        self.updates_per_step = groups[0].loop.agent.updates_per_step
        self.updates = torch.zeros(len(seeds), dtype=torch.int64)
        self.acting_streams = Streams.named(seeds, "latents of evaluations")

    def warm_up(self) -> None:
        wait = self.schedule.first_update
        if wait >= self.budget:
            self._warn(f"nothing will be learned: the run has {self.budget} steps, the first update comes after {wait}")

    def epoch(self) -> dict[str, Tensor]:
        start = time.perf_counter()
        self.epochs += 1
        for group in self.groups:
            group.loop.agent.budget = self.budget
        seen = self._gathered([group.loop.epoch(self.steps) for group in self.groups])
        self._check_returns(seen["finite"])
        self.env_steps = self.env_steps + self.steps * self.envs
        self.updates = self.updates + seen["updated"] * self.updates_per_step
        self.gradient_steps = int(self.updates.max())
        seconds = torch.full((len(self.seeds),), time.perf_counter() - start)
        self._check_members("loss", seen["loss"], seen["updated"] > 0)
        return {
            "train/loss": seen["loss"], "rollout/return_mean": seen["return"], "rollout/length": seen["length"],
            "gradient_steps": self.updates,
        } | {tag: values for tag, values in seen.items() if "/" in tag} | {"time/train": seconds}  # fmt: skip

    def _sound_members(self) -> Tensor:
        return self._gathered([{"sound": finite(group.loop.agent)} for group in self.groups])["sound"]

    def _gathered(self, rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Rows ``[m, ...]`` of all groups as ``[M, ...]``, every member in its place."""
        order = torch.cat([group.at for group in self.groups]).argsort()
        return {name: torch.cat([row[name] for row in rows])[order] for name in rows[0]}

    def evaluate(self, episodes: int, sample: bool = False) -> Episodes:
        """Greedy episodes; there is no other way to ``sample``."""
        assert not sample
        parts = []
        for count in rounds(episodes, self.groups[0].evaluation.envs):
            seeds, streams, rows = self.evaluation_streams.episode_seeds(count), self.acting_streams.fork(), []
            for group in self.groups:
                policy = group.loop.agent.begin(count, streams.of(group.at), sample=False, evaluate=True)
                played = rollout(policy, group.evaluation, seeds[group.at], keep=False)
                rows.append({"returns": played.returns, "lengths": played.lengths})
            parts.append(Episodes(**self._gathered(rows)))
        return joined(parts)

    def measure(self) -> dict[str, Tensor]:
        played = self.evaluate(self.eval_episodes)
        row = {self.score_tag: played.returns.mean(1)}
        if self.schedule.continuing:
            row["eval/reward_rate"] = (played.returns / played.lengths).mean(1)
        return row

    def policy(self, streams: Streams, sample: bool = False) -> Policy:
        first = self.groups[0]  # which the first member is always in
        return first.loop.agent.begin(1, streams.of(first.at), sample=sample, evaluate=True)

    def state_dict(self, whole: bool = True) -> dict[str, Any]:
        return super().state_dict() | {
            "acting_streams": self.acting_streams.get_state(), "updates": self.updates, "budget": self.budget,
            "groups": [group.loop.state_dict() for group in self.groups] if whole else None,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.acting_streams.set_state(state["acting_streams"])
        self.updates = state["updates"]
        self.budget = state["budget"]  # that of the beginning: exploration must not return when a run gets longer
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.loop.load_state_dict(saved)

    def close(self) -> None:
        for group in self.groups:
            group.loop.environment.close()
            group.evaluation.close()
