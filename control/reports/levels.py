"""What an axis says: labels with units, and the levels that curves are compared with, each with its source."""

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from control.reports.tags import FITNESS, REWARD_RATE, TAGS, of_search
from envs.names import reward_threshold
from models.registry import family, implementations
from models.settings import UserError

STEPS_LABEL = "environment steps"
SEARCH_STEPS_LABEL = "steps of all agents on proxies"
RETURN_LABEL = "return (sum of rewards)"
# Losses of different kinds share no panel. By tag and package of the family: what is drawn, and its unit.
_TD = ("Squared TD error", "reward²")
_ACTOR = ("Minus the value of the policy's actions", "reward")
LOSSES: dict[tuple[str, str], tuple[str, str]] = {
    ("train/value_loss", "ddqn"): _TD,
    ("train/value_loss", "tabular"): _TD,
    ("train/value_loss", "td3"): _TD,
    ("train/value_loss", "sac"): _TD,
    ("train/value_loss", "model_generalisation"): _TD,
    ("train/policy_loss", "td3"): _ACTOR,
    ("train/policy_loss", "sac"): _ACTOR,
    ("train/policy_loss", "command_conditioned"): ("Cross-entropy of actions", "nats"),
    ("train/validation_loss", "command_conditioned"): ("Cross-entropy on new episodes", "nats"),
    ("train/policy_loss", "ppo"): ("Clipped surrogate loss", "advantage"),
    ("train/policy_loss", "policy_gradients"): ("Policy-gradient loss", "nats x weight"),
    ("train/loss_p", "policy_gradients"): ("Policy-gradient loss", "nats x weight"),
    ("train/value_loss", "command_conditioned"): ("Squared error of the value", "return²"),
    ("train/value_loss", "ppo"): ("Squared error of the value", "return²"),
    ("train/value_loss", "policy_gradients"): ("Squared error of the value", "return²"),
    ("train/value_loss", "td3_discrete"): _TD,
    ("train/policy_loss", "td3_discrete"): _ACTOR,
    ("train/entropy_loss", "policy_gradients"): ("Entropy loss", "beta x entropy share"),
    ("train/total_loss", "ppo"): ("Sum of PPO's losses", "weighted"),
    ("train/total_loss", "policy_gradients"): ("Sum of the policy gradient's losses", "weighted"),
}


@dataclass(frozen=True)
class Level:
    """A return of others that a panel shows as a line: ``name`` in the legend, ``source`` in the note. With
    ``implementation`` it is of that alone and drawn in its colour."""

    value: float
    name: str
    source: str
    implementation: str = ""

    @property
    def label(self) -> str:
        return f"{self.name}: {self.value:g}"


_SRIVASTAVA = "Srivastava et al. 2019, read off a figure"
_KUMAR = "Kumar et al. 2019, read off a figure"
_ZOO = "RL Baselines3 Zoo"
# Published returns, by environment as `--gamename` has it.
PUBLISHED: dict[str, tuple[Level, ...]] = {
    "lunarlander": (
        Level(140, "UDRL, published", _SRIVASTAVA, "UDRL"),
        Level(220, "RCP-R, published", _KUMAR, "RCP-R"),
        Level(200, "RCP-A, published", _KUMAR, "RCP-A"),
    ),
    "lunarlander-sparse": (Level(160, "UDRL, published", _SRIVASTAVA, "UDRL"),),
    "pendulum": (Level(-150, "TD3, published", _ZOO, "TD3"), Level(-150, "SAC, published", _ZOO, "SAC")),
}
_SOLVED = "Gymnasium's reward_threshold"


def levels(game: str, names: Iterable[str] = ()) -> list[Level]:
    """The levels to show of an environment and of the implementations ``names``: what Gymnasium calls solved, where it
    says so, then what is published. None of an environment that is unknown here."""
    selected = set(names)
    published = [level for level in PUBLISHED.get(game, ()) if level.implementation in selected]
    threshold = solved(game)
    return [*([] if threshold is None else [Level(threshold, "solved", _SOLVED)]), *published]


def solved(game: str) -> float | None:
    """The mean return from which Gymnasium calls an environment solved; None where it does not say, and of an
    environment that is unknown here."""
    with contextlib.suppress(UserError, ImportError):
        return reward_threshold(game)
    return None


def sources(shown_levels: Sequence[Level]) -> str:
    """``solved: reward_threshold ...; RCP-R and RCP-A, published: Kumar et al. 2019`` for the note of a figure."""
    by_source: dict[str, dict[str, None]] = {}
    for level in shown_levels:
        by_source.setdefault(level.source, {})[level.name] = None
    texts = []
    for source, names in by_source.items():
        last = list(names)[-1]
        other_names = [name.partition(",")[0] for name in names if name != last]
        texts.append(f"{' and '.join([*other_names, last])}: {source}")
    return "; ".join(texts)


def in_words(game: str) -> str:
    """``procmaze_grid_size=3``, as a folder is called, as ``procmaze, grid size 3``."""
    return re.sub(r"[_,]([a-z_]+)=([^_,]*)", lambda match: f", {match[1].replace('_', ' ')} {match[2]}", game)


def package(names: Iterable[str]) -> str:
    """The package of the family that one of ``names`` is an implementation of; empty where none is."""
    registered = implementations()
    return next((family(name).package.rpartition(".")[2] for name in names if name in registered), "")


def quantity(tag: str, of: str = "") -> tuple[str, str]:
    """What a panel of ``tag`` shows of a family's package ``of``, and the label of its y axis with the unit."""
    entry = TAGS[tag]
    if entry.kind == "loss":
        title, unit = LOSSES.get((tag, of), (entry.title, ""))
        if "aseline" in entry.title:
            return title, RETURN_LABEL
        return title, f"loss ({unit})" if unit else "loss"
    if tag == REWARD_RATE:
        return entry.title, "reward per step"
    return entry.title, "fitness (return)" if tag == FITNESS else RETURN_LABEL


def steps_label(*tags: str) -> str:
    """The label of the x axis of a panel of these ``tags``."""
    return SEARCH_STEPS_LABEL if of_search(tags) else STEPS_LABEL


def same_axis(tags: Iterable[str]) -> list[str]:
    """Those of the ``tags`` whose panels show returns of episodes, and share their limits side by side."""
    return [tag for tag in tags if TAGS[tag].kind == "return" and tag not in (REWARD_RATE, FITNESS)]
