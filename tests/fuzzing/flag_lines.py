"""Command lines: real flags with values that are right, at the edge, wrong or absurd, and words that are no flags."""

import functools
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from control.cli.options import Flag, flags, flags_of_all
from helpers import SMALL_POLICY_RUN, SMALL_RUN, SMALL_SEARCH, SMALL_STEP_RUN, on_policy
from models.registry import family, implementations
from models.settings import kinds

# What makes a run last a second, beside those of the helpers.
MODEL_RUN = {"gamename": "procmaze", "total_steps": 40, "steps_per_epoch": 20, "eval_steps": 10, "eval_episodes": 4,
             "training_start_time": 10, "batch_size": 4, "hidden_sizes": "8,8,8", "buffer_size": 50}  # fmt: skip

UNICODE = ["é", "日本語", "🦜", "\u202egnp", "a\u0301", "\ufeff", "ﬁ", "Ⅷ", "٣", "½", "\u200b", "\udcff"]
ODD = ["", " ", "-", "--", "---", "=", "--=", "null", "None", "~", "true", "no", "[]", "()", "{}", "[[1]]", "1,2",
       "1 2",
       "a\nb", "a\tb", "\x1b[31mred\x1b[0m", "a\x00b", "%s%n", "{0}", "$HOME", "`id`", "'", '"', "\\", "*", "..", "/",
       "&a",
       "!!python/object/apply:os.system", "0x10", "1e3", "1_000", "+5", "-0", "5.0", "1e400", "nan", "inf", "-inf",
       *UNICODE]  # fmt: skip
HUGE_INTEGERS = [2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**24, "9" * 400, "9" * 5000, -(2**63), 10**6]
HUGE_FLOATS = ["1e308", "1e309", "-1e308", "5e-324", "1e-300", "9" * 400, "0." + "1" * 400, "1e38", "1e39", "-0.0"]


def small(implementation: str) -> dict[str, Any]:
    """Settings that make a run of an implementation short; none where there is no such implementation."""
    if implementation not in implementations():
        return {}
    implementation_family = family(implementation)
    if implementation_family.learns_from == "evolution":
        tests = {"test_every": 20} if implementation == "RN" else {}
        return SMALL_SEARCH | {"generations": 1, "population": 2, "deploy_steps": 60} | tests
    if implementation_family.learns_from == "steps":
        if "total_steps" in (setting_kinds := kinds(implementation_family.config)):
            return MODEL_RUN
        lacks = {"batch_size", "hidden_sizes", "buffer_size", "init_episodes"} - {*setting_kinds}
        return {name: value for name, value in SMALL_STEP_RUN.items() if name not in lacks} | {
            "epochs": 1,
            "eval_every": 1,
        }
    return SMALL_POLICY_RUN | {"max_episodes": 6} if on_policy(implementation) else SMALL_RUN | {"epochs": 1}


def games(rng: random.Random, valid: bool) -> str:
    from envs.names import GAMES

    playable_names = [
        name for name in GAMES if name not in ("takecover", "halfcheetah", "hopper", "swimmer", "carracing")
    ]
    if valid:
        return rng.choice([*playable_names, "procmaze,grid_size=3", "buttongrid,num_buttons=1,grid_size=4",
                           "CartPole-v1", "panflute,spontaneous_reward=false", "Acrobot-v1", "LunarLander-v3",
                           "Taxi-v3"])  # fmt: skip
    name, value = rng.choice(playable_names), rng.choice([*ODD, *map(str, HUGE_INTEGERS), "[" * 3000, "&a [*a]"])
    key = rng.choice(["grid_size", "num_buttons", "num_pipes", "spontaneous_termination", "max_episode_steps", value])
    return rng.choice([
        misspelt(rng, name), f"{name},{key}={value}", f"procmaze,{key}={value}", f"buttongrid,{key}={value}",
        f"panflute,{key}={value}", f"{name},", f",{name}", f"{name},{key}", f"procmaze,grid_size=5,grid_size={value}",
        f"nomodule{rng.randrange(9)}:{name}", f"os:{name}", f"{name}:{name}", ":", ",", f"{name}-v0", f"{name}-v99999",
        "ALE/Pong-v5", "phys2d/CartPole-v1", "Blackjack-v1", "HalfCheetah-v5", "takecover", "tabular/CliffWalking-v0",
        "probe-9", "probe-", value, "a" * 300, name.upper(), "CartPole-v" + "9" * 400, "CartPole-v٣",
        "CartPole-v1" + value,
    ])  # fmt: skip


def misspelt(rng: random.Random, word: str) -> str:
    letters, at = list(word or "x"), rng.randrange(max(1, len(word)))
    edit_kind = rng.randrange(5)
    if edit_kind == 0:
        del letters[at]
    elif edit_kind == 1:
        letters.insert(at, rng.choice("abcxyz_-0 ü"))
    elif edit_kind == 2:
        letters[at] = rng.choice("abcxyz_-0 ü")
    elif edit_kind == 3:
        letters = list(word.replace("_", "-") if "_" in word else word.upper())
    else:
        letters = list(word[: at + 1])
    return "".join(letters)


def paths(rng: random.Random, stock: Path) -> str:
    """Paths of all sorts; none that can be written lies outside the folder of the case."""
    inside = [str(path) for path in sorted(stock.rglob("*"))][:200] or ["x"]
    return rng.choice([
        rng.choice(inside), rng.choice(inside), str(stock), "missing", "missing/deep/er", "a" * 300, "b/" * 2500, "",
        ".",
        "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem", "/dev/null/x", "a\x00b", "a\nb", "\x1b[31mx",
        "~nobody", "~",
        rng.choice(inside) + "/", rng.choice(inside) + "/x", "file.safetensors", "x.ckpt", "x.yaml", "x.json", "x.png",
        "cartpole-bandit", "cartpole-mdp", "cartpole-mpd", *UNICODE,
    ])  # fmt: skip


def value(rng: random.Random, flag: Flag, stock: Path, valid: bool) -> list[str]:
    """Words after a flag: a value that is fine, as far as the flag itself can say, or any other."""
    meta, item = flag.meta, flag.kind.item
    if not valid:
        draw = rng.random()
        if draw < 0.3:
            return [rng.choice(ODD)]
        if draw < 0.55:
            return [str(rng.choice(HUGE_INTEGERS if item is int else HUGE_FLOATS))]
        if draw < 0.6:
            return []
        if draw < 0.65:
            return [rng.choice(ODD), rng.choice(ODD)]
        if draw < 0.7:
            return [",".join(["8"] * rng.choice([0, 2, 17, 2000]))]
        if draw < 0.85:
            edges = [meta[edge] for edge in ("above", "minimum", "below", "maximum") if meta.get(edge) is not None]
            edge = rng.choice(edges or [0])
            other = [edge, edge - 1, edge + 1, -edge, math.nextafter(edge, math.inf), math.nextafter(edge, -math.inf)]
            return [str(rng.choice(other))]
        if meta.get("choices"):
            return [misspelt(rng, str(rng.choice(meta["choices"])))]
        return [paths(rng, stock)]
    if flag.kind.optional and rng.random() < 0.15:
        return ["null"]
    if flag.name == "gamename":
        return [games(rng, True)]
    if item is bool:
        return rng.choice([[], ["true"], ["false"], ["yes"], ["off"]])
    if meta.get("choices"):
        return [str(rng.choice(meta["choices"]))]
    if item is str:
        return [paths(rng, stock) if flag.name in PATHS else rng.choice(["a", "first run", "x-1", "é", "日本語"])]
    least, greatest = meta.get("minimum", meta.get("above")), meta.get("maximum", meta.get("below"))
    low, high = 0 if least is None else least, 20 if greatest is None else min(greatest, 20)
    count = rng.randint(1, 3) if flag.kind.is_list else 1
    if item is int:
        draws = [rng.choice([math.floor(low) + rng.randrange(3), rng.randint(int(low), max(int(low), int(high)))])
                 for _ in range(count)]  # fmt: skip
        return [",".join(map(str, draws))]
    middle = (low + high) / 2
    return [",".join(f"{rng.choice([middle, low + (high - low) * rng.random()]):g}" for _ in range(count))]


PATHS = (
    "logdir", "reload", "eval_agent", "search_space", "plot", "plot_out", "film", "film_out", "report", "report_out",
    "config",
)  # fmt: skip


@functools.cache
def _flags(implementation: str) -> Mapping[str, Flag]:
    return flags(implementation, "") if implementation in implementations() else flags_of_all("")


def draw(rng: random.Random, stock: Path) -> tuple[list[str], list[str]]:
    """A command line, and the names of the settings in it."""
    if rng.random() < 0.06:
        words = [rng.choice([*ODD, "--seed", "--help", "-h", "-seed", "--config", "lr=3", "--lr=", "--no_", "--no_seed",
                             "--no_no_record", "--command.", "--command.x", "--command", "--version=3", "--a=b=c",
                             "-" * 500, "--" + "x" * 5000]) for _ in range(rng.randint(1, 6))]  # fmt: skip
        return words, []
    implementation = rng.choice([*implementations()])
    flag_words: list[tuple[str, list[str]]] = []
    if rng.random() < 0.85:
        flag_words.append(("implementation", [implementation]))
    else:
        implementation = "UDRL"
    wrong = rng.choice([0, 0, 1, 1, 1, 2])  # how many values are meant to be wrong
    mode = rng.random()
    if mode < 0.12:
        flag_words = [("eval_agent", [paths(rng, stock)])]
    elif mode < 0.17:
        flag_words = [(rng.choice(["plot", "report"]), [paths(rng, stock) for _ in range(rng.randint(0, 3))])]
    elif mode < 0.25:
        flag_words += [("use_tune", []), *([("search_space", [paths(rng, stock)])] if rng.random() < 0.6 else [])]
    elif mode < 0.32:
        flag_words.append(("config", [paths(rng, stock)]))
    elif mode < 0.36:
        flag_words.append((rng.choice(["help", "version"]), []))
    if rng.random() < 0.5:
        flag_words.append(("gamename", [games(rng, rng.random() < 0.6)]))
    agent_flags, all_flags = _flags(implementation), _flags("")
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5])):
        flag = rng.choice([*(agent_flags if rng.random() < 0.9 else all_flags).values()])
        valid = rng.random() < 0.5 or not wrong
        wrong -= not valid
        flag_words.append((flag.name, value(rng, flag, stock, valid)))
        if rng.random() < 0.04:
            flag_words.append((flag.name, value(rng, flag, stock, True)))
    if rng.random() < 0.06:
        at = rng.randrange(len(flag_words)) if flag_words else 0
        flag_words[at:at] = [(misspelt(rng, rng.choice([*all_flags])), ["1"])]
    rng.shuffle(flag_words)
    words: list[str] = []
    for name, flag_values in flag_words:
        if flag_values and rng.random() < 0.2:
            words.append(f"--{name}={flag_values[0]}")
            words += flag_values[1:]
        elif not flag_values and rng.random() < 0.1:
            words.append(f"--no_{name}")
        else:
            words += [f"--{name}", *flag_values]
    return words, [name for name, _ in flag_words]


def shortened(argv: Sequence[str], implementation: str) -> list[str]:
    """``argv`` with what makes its run short, where it does not say so itself."""
    flag_names = {word[2:].partition("=")[0].removeprefix("no_") for word in argv if word.startswith("--")}
    if flag_names & {"eval_agent", "plot", "film", "report", "help", "version", "preset", "use_tune"} or not (
        small_settings := small(implementation)
    ):
        return [*argv]
    extra = {name: setting for name, setting in small_settings.items() if name not in flag_names | {"implementation"}}
    return [*argv, *(word for name, setting in extra.items() for word in (f"--{name}", str(setting)))]
