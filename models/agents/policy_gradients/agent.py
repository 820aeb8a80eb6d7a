"""Policy gradients: vanilla, with baseline, with entropy, with both, and advantage actor-critic; one agent, five
settings.

Read top to bottom: acting, what the episodes of a batch are worth (`observe`), the one gradient step they are good for
(`learn`). Deviations from the notebook are listed in docs/policy_gradients.md.
"""

import functools
from collections.abc import Mapping

import torch
from torch import Tensor

from models.agents.policy_gradients.batch import Batch, pack, unpack
from models.agents.policy_gradients.config import Config
from models.agents.policy_gradients.networks import ActorCritic
from models.contract import EpisodeAgent, Policy
from models.losses import entropy_loss, policy_gradient, value_loss
from models.optim import Adam, clip_gradients
from models.returns import discounted_returns, lambda_returns
from models.spaces import Discrete, Spaces
from models.streams import NoiseBlocks, Streams
from models.trajectory import Trajectory

_SURE = 1e-6  # share of the largest entropy


class SoftmaxPolicy(Policy):
    """E episodes of every member under way: actions drawn from the policy, or its likeliest."""

    def __init__(self, agent: "Agent", envs: int, streams: Streams, sample: bool):
        self.network, self.members = agent.network, agent.members
        shape = (envs, self.network.actions)
        self.noise = NoiseBlocks(streams, [(Streams.gumbel, {"action": shape})]) if sample else None

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Actions ``[M, E]`` for ``obs [M, E, *O]``."""
        scores = self.network.scores(obs)
        return (scores if self.noise is None else scores + self.noise.next()["action"]).argmax(-1)


class Agent(EpisodeAgent):
    """M members of one policy-gradient agent; between epochs it keeps nothing but weights and moments."""

    action_kinds = (Discrete,)
    takes_images = True
    main_loss = "loss_p"
    optimizers: list[Adam]

    def __init__(self, config: Config, spaces: Spaces, seeds: list[int]):
        super().__init__()
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        self.network = ActorCritic(config, spaces, Streams.named(seeds, "initial weights"))
        self.optimizers = [Adam(self.network.trained_by_policy, config.lr, eps=config.eps)]
        if self.network.critic:
            self.optimizers.append(Adam([self.network.critic.flat], config.value_lr or config.lr, eps=config.eps))
        self.batch: Batch | None = None

    def begin(
        self, envs: int, streams: Streams, *, sample: bool, evaluate: bool = False,
        command: Mapping[str, float] | None = None,
    ) -> SoftmaxPolicy:  # fmt: skip
        """Start E episodes a member. ``sample`` draws actions (else greedy); to ``evaluate`` is to act as ever, and
        there is no ``command``."""
        assert not command
        return SoftmaxPolicy(self, envs, streams, sample)

    # -- what episodes are worth --------------------------------------------------------------------------------

    @torch.no_grad()
    def observe(self, trajectory: Trajectory, validate: bool = False) -> dict[str, Tensor]:
        """Take in the episodes of one update. Returns ``baseline`` and ``adv_m``, means over the experiences of what
        their returns were compared with and of what was left, where there is a baseline."""
        config = self.config
        self.batch = batch = pack(trajectory)
        values = None
        if config.baseline == "value":
            values = torch.cat([self.network.values(chunk.obs) for chunk in batch.chunks()], 1)
        batch.returns = batch.table(self._returns(trajectory, values), trajectory.valid)
        if values is not None:
            baseline = values
        else:
            means = batch.by_member(torch.mean, batch.returns)
            baseline = (means if config.baseline == "batch_mean" else torch.zeros_like(means)).unsqueeze(1)
        batch.weights = batch.returns - baseline
        metrics = {}
        if config.baseline != "none":
            metrics["baseline"] = batch.by_member(torch.mean, baseline.expand_as(batch.returns))
            metrics["adv_m"] = batch.by_member(torch.mean, batch.weights)
        if config.normalize_advantage:
            batch.weights = batch.by_member(_standardised, batch.weights)
        return metrics

    def _returns(self, trajectory: Trajectory, values: Tensor | None) -> Tensor:
        """Discounted or TD(lambda) returns of every step ``[T, M, E]``, given ``values [M, N]`` of the packed ones."""
        config = self.config
        reward, valid = trajectory.reward * config.reward_scale, trajectory.valid
        last = self._last_values(trajectory) if config.bootstrap_truncation else None
        if values is None or config.gae_lambda is None:
            return discounted_returns(reward, valid, config.discount, last)
        following = self._following(trajectory, unpack(values, valid), last)
        return lambda_returns(reward, following, valid, config.discount, config.gae_lambda)

    def _last_values(self, trajectory: Trajectory) -> Tensor:
        """V of the observation after each episode ``[M, E]``, 0 where the environment ended it."""
        return self.network.values(trajectory.final_obs) * ~trajectory.terminated.any(0)

    def _following(self, trajectory: Trajectory, values: Tensor, last: Tensor | None) -> Tensor:
        """V after each step ``[T, M, E]``, given V of each step."""
        following = torch.cat([values[1:], torch.zeros_like(values[:1])])
        return torch.where(
            trajectory.terminated | trajectory.truncated, torch.zeros_like(values) if last is None else last, following
        )

    # -- learning ----------------------------------------------------------------------------------------------

    def learn(self) -> dict[str, Tensor]:
        """One gradient step on the batch, which is then forgotten. Returns ``{name: [M]}``: the losses ``loss_p``,
        ``loss_e`` (with entropy), ``loss_v`` (with values), their sum ``loss_t``, and ``entropy``, the policy's as a
        share of the largest possible."""
        assert self.batch is not None
        batch, self.batch = self.batch, None
        self._anneal()
        parts = [self._descend(chunk) for chunk in batch.chunks()]
        for optimizer in self.optimizers:
            self._step(optimizer)
        for _ in range(self.config.value_steps):
            self._fit_values(batch)
        # one after another: a sum along an axis of chunks rounds by how many there are, and others may need more
        return {name: functools.reduce(torch.add, [part[name] for part in parts]) for name in parts[0]}

    def _descend(self, chunk: Batch) -> dict[str, Tensor]:
        """Add the gradient of a chunk; what it adds to each mean, ``[M]``."""
        config = self.config
        scores, values = self.network(chunk.obs)
        negative_entropy = entropy_loss(scores, 1.0, chunk.share)
        losses = {"loss_p": policy_gradient(scores, chunk.action, chunk.weights, chunk.share)}
        if config.beta > 0:
            losses["loss_e"] = config.beta * negative_entropy
        if values is not None:
            losses["loss_v"] = value_loss(values, chunk.returns, config.delta, chunk.share)
        total = torch.stack(list(losses.values())).sum(0)
        total.sum().backward()
        losses |= {"loss_t": total, "entropy": -negative_entropy}
        return {name: value.detach() for name, value in losses.items()}

    def _fit_values(self, batch: Batch) -> None:
        for chunk in batch.chunks():
            value_loss(self.network.values(chunk.obs), chunk.returns, self.config.delta, chunk.share).sum().backward()
        self._step(self.optimizers[1])

    def _step(self, optimizer: Adam) -> None:
        (group,) = optimizer.param_groups
        if self.config.grad_clip_val is not None:
            clip_gradients(group["params"], self.config.grad_clip_val)
        optimizer.step()
        optimizer.zero_grad()

    def _anneal(self) -> None:
        if self.config.anneal_lr:
            left = 1 - self.optimizers[0].param_groups[0]["step_count"] / self.config.epochs
            for optimizer, lr in zip(
                self.optimizers, (self.config.lr, self.config.value_lr or self.config.lr), strict=False
            ):
                optimizer.param_groups[0]["lr"] = left * lr

    def has_collapsed(self, metrics: Mapping[str, Tensor]) -> tuple[Tensor, str]:
        """Which members ``[M]`` bool explore nothing, going by what `learn` gave, and what that means."""
        text = "the policy has been sure of every action, so it explores nothing and learns no more"
        return metrics["entropy"] < _SURE, f"{text}; a smaller lr or a larger beta may help"


def _standardised(values: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over ``[n]``; all 0 where they are equal."""
    centred = values - values.mean()
    return centred / (centred.square().mean().sqrt() + 1e-8)
