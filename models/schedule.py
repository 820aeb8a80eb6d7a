"""What an epoch is: a number of episodes, or a number of steps. The two share no field. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EpisodeSchedule:
    """Of an agent that learns from whole episodes; ``schedule`` of its settings makes one.

    An epoch plays ``episodes`` side by side and makes ``gradient_steps``: from the replay buffer before those are
    played, or, ``on_policy``, from those episodes, which it then forgets. ``gradient_steps`` are only counted; 0 is for
    an agent without gradients. ``warm_up`` random episodes come before the first epoch, and the first ``random_epochs``
    epochs play at random.

    With ``running_mean`` the run is judged by the mean return of its latest so many training episodes, and over once
    that reaches ``target``; without, by greedy evaluations.
    """

    episodes: int
    gradient_steps: int
    on_policy: bool = False
    warm_up: int = 0
    random_epochs: int = 0
    running_mean: int | None = None
    target: float | None = None


@dataclass(frozen=True)
class StepSchedule:
    """Of an agent that learns between steps. It comes from the run's settings, or from the agent's where these say
    it.

    An epoch is ``steps_per_epoch`` steps of every member; every ``eval_every`` epochs ``eval_episodes`` episodes of at
    most ``eval_steps`` (None: as in training) are played. ``endless``: training episodes know no time limit but the
    run's own. ``continuing``: the environment has no episodes, so the reward per step says more than the return.
    ``first_update`` is how many steps of a member come before the first update, where the settings say so.
    """

    steps_per_epoch: int
    eval_every: int
    eval_episodes: int
    eval_steps: int | None = None
    endless: bool = False
    continuing: bool = False
    first_update: int = 0
