"""The LightningModule of agents: an epoch of its loop is a Lightning epoch."""

import time
from collections import deque
from os import PathLike
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from control.cli.progress import progress
from control.cli.settings import RunConfig, Settings
from control.lightning.module import RunModule
from control.loops.build import build_loop, take_weights
from control.loops.loop import Loop, as_observations, first_member_actions
from control.reports import tags
from control.reports.tables import number_text
from control.storage import checkpoints
from models.streams import Streams

_PRINTED_EPOCHS = 10  # number of epochs in the mean of the printed return, because an epoch has few episodes


class AgentModule(RunModule):
    """The LightningModule that trains M independent agents (members, one for each seed of the run) in an environment.
    The ``loop`` trains them for an epoch, evaluates them, and counts steps. The agents step their optimisers, which
    Lightning only saves.

    :param settings: The settings of the run.
    :raises SettingError: Agent, environment and machine do not fit together.
    """

    def __init__(self, settings: Settings):
        loop = build_loop(settings)
        # The setting stores whether the loop chose machine code or torch, so that a resumed run does not choose again.
        super().__init__(loop.settings.replace(compiled=loop.compiled))
        self.loop, self.steps_kind = loop, loop.steps_kind
        self.validate_every = settings.schedule.eval_every
        # A short run has at least five evaluations, unless the user has changed the interval.
        self.evaluations = 5 if self.validate_every == RunConfig.eval_every else 1
        self.agents = nn.ModuleList(loop.agents)
        # Returns of the latest epochs in which episodes ended.
        self._recent_returns = deque[float](maxlen=_PRINTED_EPOCHS)
        self._latest_loss: dict[str, float] = {}  # tag -> loss; empty before the first update

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: str | PathLike[str], **changes: Any) -> Self:  # type: ignore[override]
        """Load a trained module from a checkpoint or the folder of a run. ``changes`` are settings that do not affect
        the networks. Only weights are loaded; to resume training, use `trainer.fit(module, ckpt_path=...)`."""
        checkpoint = checkpoints.load(checkpoint_path)
        module = cls(checkpoint.settings.replace(**changes))
        module.load_weights(checkpoint)
        return module

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the `EpochOptimizer` and the agents' torch optimisers. Other optimisers are saved with the agents."""
        agent_optimizers = [optimizer for agent in self.loop.agents for optimizer in agent.optimizers]
        return [*super().configure_optimizers(), *agent_optimizers]

    def on_fit_start(self) -> None:
        # The progress says whether functions are compiled, which happens before any clock of the training starts.
        with progress("before the first epoch", self.verbose and self.watch is None):
            self.loop.compile_ahead()

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.epoch == 0:
            self.loop.warm_up()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Train an epoch. If the run is too short for ``evaluations`` evaluations by Lightning, which evaluates every
        `check_val_every_n_epoch` epochs, also evaluate here: after the last epoch, and at a shorter interval, the
        longest divisor of Lightning's that gives enough evaluations."""
        super().training_step(batch, batch_idx)
        interval = self.trainer.check_val_every_n_epoch
        if not interval or self.epoch % interval == 0:  # no evaluations at all, or Lightning evaluates now
            return
        is_over = self.is_over()  # a target may end the run early
        num_epochs = self.epoch if is_over else round(self.epoch / self.finished_fraction())  # estimated from steps
        if num_epochs >= self.evaluations * interval:
            return
        divisors = [i for i in range(1, interval) if interval % i == 0 and self.evaluations * i <= num_epochs]
        if is_over or (self.evaluations > 1 and self.epoch % max(divisors, default=1) == 0):
            # Streams are restored, so that a run resumed with more epochs has the weights of an uninterrupted run.
            with self.loop.preserve_streams():
                self._evaluate(logger=False, on_step=False, on_epoch=True)

    def train_epoch(self) -> None:
        """Train the agents for an epoch. Set ``row`` to its measurements, ``{tag: [M]}``, and the counters of epochs
        and steps to the loop's."""
        start, steps_before = time.perf_counter(), int(self.loop.env_steps.sum())
        self.loop.watch = self.watch
        self.row = self.loop.epoch()
        steps = int(self.loop.env_steps.sum()) - steps_before
        self.row[tags.SPEED] = torch.full((len(self.seeds),), steps / (time.perf_counter() - start))
        means = self.means()
        if tags.TRAINING in means:
            self._recent_returns.append(means[tags.TRAINING])
        if self.loop.loss_tag in means:
            self._latest_loss = {self.loop.loss_tag: means[self.loop.loss_tag]}
        self.epoch, self.env_steps = self.loop.epochs, self.loop.env_steps
        self.gradient_steps = self.loop.gradient_steps
        if tags.LEARNING_RATE in self.row:  # the mean over members, for `LearningRateMonitor`
            self.epoch_optimizer.param_groups[0]["lr"] = float(self.row[tags.LEARNING_RATE].nanmean())

    @torch.no_grad()
    def forward(self, observations: ArrayLike | Tensor) -> Tensor:
        """Return the greedy actions of the first seed's agent, ``[B]`` int64 or ``[B, A]`` float32, for
        ``observations [B, *O]``. For an observation ``[*O]``, return an action without the axis B. Every observation
        counts as the first of an episode. Agents that pursue a return or another goal get the goal of evaluations.
        Raises SettingError for other shapes."""
        obs_shape = self.loop.agents[0].spaces.obs_shape
        obs = as_observations(observations, obs_shape, next(self.parameters()).device)
        obs_batch = obs.reshape(-1, *obs_shape)
        # The policy acts in B environments, which have one observation each.
        policy = self.loop.policy(Streams.from_name([0] * len(self.seeds), "playing"), envs=len(obs_batch))
        actions = first_member_actions(policy, obs_batch)
        is_batch = obs.dim() > len(obs_shape)
        return actions if is_batch else actions[0]

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0] if isinstance(batch, list | tuple) else batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate the agents with the run's number of episodes. Outside of `fit`, this does not affect the episodes of
        later evaluations."""
        if self.trainer.state.fn != "fit":
            self.row = {}
            with self.loop.preserve_streams():
                self._evaluate()
        elif not self.trainer.sanity_checking:
            self._evaluate(logger=False)

    test_step = validation_step

    def _evaluate(self, **log_options: Any) -> None:
        """Evaluate the agents, add the measurements to ``row``, and log the mean scores with ``log_options``."""
        start = time.perf_counter()
        self.row |= self.loop.measure()
        self.row["time/eval"] = torch.full((len(self.seeds),), time.perf_counter() - start)
        for tag, mean in self.means().items():
            if tag in tags.SCORES:
                self.log(tag, mean, batch_size=1, **log_options)

    def run_state(self) -> dict[str, Any]:
        return super().run_state() | {"loop": self.loop.state_dict(self.resumable)}

    def load_run_state(self, state: dict[str, Any]) -> None:
        super().load_run_state(state)
        self.loop.load_state_dict(state["loop"])

    def load_weights(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Load the weights of a checkpoint, and nothing else. Raises CheckpointError if shapes differ."""
        take_weights(self.loop.agents, checkpoint)

    def is_evaluated(self) -> bool:
        return tags.GREEDY in self.row

    def is_over(self) -> bool:
        return super().is_over() or self.loop.has_reached_target()

    def score(self) -> float | None:
        """Return the mean score over all seeds whose score is finite, or None if there is none. Diverged agents still
        play, and their scores count, so that the scores of different epochs are comparable."""
        return _finite_mean(self.row.get(self.loop.score_tag, torch.empty(0)))

    def confirmed_score(self) -> float | None:
        """Return the mean of the `score` and the score of a second evaluation, whose episodes have other seeds. Return
        the `score` itself if it is the score of training episodes, or if the returns of each member were all equal."""
        loop = self.loop
        if loop.score_tag != tags.GREEDY or not loop.varies:
            return self.score()
        return _finite_mean((self.row[tags.GREEDY] + loop.second_score()) / 2)

    def stop_reason(self) -> str:
        """Return text about the target that the mean over members has reached: the run's ``target_return`` or the
        target in the agent's settings. It is empty if no target is reached."""
        means, loop = self.means(), self.loop
        run_target = (tags.GREEDY, Loop.score_name, self.settings.run.target_return)
        agent_target = (loop.score_tag, loop.score_name, loop.target)
        for tag, name, target in (run_target, agent_target):
            if target is not None and tag in means and means[tag] >= target:
                return f"{name} {number_text(means[tag])} reached the target {target}"
        return ""

    def histograms(self) -> dict[str, Tensor]:
        """Return the numbers of TensorBoard's histograms, tag -> numbers, of the first member: its weights, without
        target networks, and its actions in the latest evaluation, with a histogram for each coordinate."""
        samples = {}
        # The name of a network's parameter is ``NETWORK.flat``, or ``flat_parameters`` if there is only one network.
        for name, tensor in self.loop.agents[0].named_parameters():
            if "target" not in name:
                network = name.replace("flat_parameters", "network").removesuffix(".flat")
                samples[f"weights/{network}"] = tensor[0]
        for mode, actions in self.loop.actions.items():
            if actions.dim() == 1:  # discrete
                samples[f"policy/actions_{mode}"] = actions
            else:
                samples |= {f"policy/actions_{mode}_{i}": coordinate for i, coordinate in enumerate(actions.unbind(1))}
        return samples

    def columns(self) -> dict[str, str]:
        """Return this epoch's row of the printed table, heading -> text: steps, the mean return in training, mean
        returns of evaluations, the loss of the latest update, and the number of diverged seeds. Missing numbers are
        empty. If the agents have no running mean of returns, the return in training is the mean over the latest
        `_PRINTED_EPOCHS` epochs with episodes."""
        means = self._latest_loss | self.means()
        if self._recent_returns:
            means[tags.TRAINING] = sum(self._recent_returns) / len(self._recent_returns)
        columns = {"steps": f"{self.steps_a_seed():10,}"}
        return_tags = {"return": tags.RUNNING_MEAN if tags.RUNNING_MEAN in self.row else tags.TRAINING}
        return_tags |= {mode: f"eval/return_{mode}" for mode in self.loop.evaluation_modes}
        for heading, tag in return_tags.items():
            columns[heading] = number_text(means[tag]) if tag in means else ""
        if tags.REWARD_RATE in means:  # an environment without episodes
            columns["reward rate"] = f"{means[tags.REWARD_RATE]:.4f}"
        columns["loss"] = ""
        if self.loop.loss_tag in means:
            loss = means[self.loop.loss_tag]
            columns["loss"] = f"{loss:.3g}" if abs(loss) >= 0.001 else f"{loss:.1e}"
        num_diverged = int((~self.loop.finite_members).sum())
        if num_diverged:
            columns["diverged"] = f"{num_diverged} of {len(self.seeds)}"
        return columns

    def close(self) -> None:
        super().close()
        self.loop.close()


def _finite_mean(values: Tensor) -> float | None:
    """Return the mean of the finite ``values``, or None if there are none."""
    finite = values[values.isfinite()]
    return float(finite.mean()) if len(finite) else None
