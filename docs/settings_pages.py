"""Generate the documentation pages of all settings from their declarations.

python -m docs.settings_pages     # writes docs/settings.md and docs/settings/*.md
"""

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from control.cli.help import OBVIOUS_VALUES, SYNTAX
from control.cli.options import parameters
from control.cli.run_settings import COMMANDS, RunConfig
from control.cli.settings import defaults_for
from control.cli.words import Flag, as_word, command_flags, flags_of
from control.commands.search_space import Dimension, search_space
from models import intrinsic
from models.family import Family
from models.proxies.search import NetworkConfig, SearchConfig
from models.registry import implementations
from models.settings import allowed, field_types
from models.vocabulary import aliases_of

WIDTH = 120
# Headings of an agent's settings, in the order of the page, and the settings below them. Others are below the last one.
_HEADINGS = {
    "network": "activation conv_channels dueling_mean feature_dim gumbel_softmax_hard gumbel_softmax_temp "
    "gumbel_temperature head hidden_sizes model network orthogonal scale_actions shared_trunk value_hidden_sizes",
    "optimisation": "adam_beta1 adam_beta2 adam_eps anneal_lr average_decay batch_episodes batch_size compile lr "
    "max_grad_norm num_grad_steps num_val_batches ppo_epochs rollout_batch_size target_kl target_update_frequency "
    "updates_per_step value_lr vf_coef weight_decay",
    "exploration": "action_noise action_std count_bonus ent_coef entropy_temperature eps_decay eps_fraction eps_init "
    "eps_min epsilon exploration_strat learn_temperature noise_type num_rand_action_rollouts policy_floor "
    "random_action_epochs random_ties softmax_temp target_entropy",
    "data": "buffer_order buffer_size buffer_unit dataset eval_steps fill horizon_scale init_episodes max_episodes "
    "normalize_obs normalize_reward num_envs online reward_scale rollout_length rollout_steps steps_per_epoch "
    "total_steps training_rollouts_per_worker training_start_time value_steps",
    "evaluation": "eval_command eval_episodes eval_every test_noise",
    "learning rule": "",
}
_HEADING_OF = {name: heading for heading, names in _HEADINGS.items() for name in names.split()}
DOCS = Path(__file__).resolve().parent
# Folder of a family -> the page about it, if it has another name.
_PAGES = {"sac": "off_policy", "td3": "off_policy", "td3_discrete": "off_policy", "tabular": "which_agent"}
_PAGES |= {"reward": "reward_networks", "synthetic": "synthetic_environments"}
# Pages of settings, in the order of their use.
_ORDER = (
    "ppo ddqn sac td3 td3_discrete tabular policy_gradients command_conditioned model_generalisation searches "
    "synthetic reward"
).split()

_SEARCH_DEFAULTS = "Defaults depend on the preset and the environment; `--help` with both shows the defaults of a run."

INTRODUCTION = """# Settings

Every setting with its meaning, default and range. It is a flag (`--lr 1e-3`), a key of a YAML file (`lr: 1e-3`) and a
keyword in Python (`lr=1e-3`), by the same name. Searches and each family have a page. Settings of every run follow
below.

{links}

{words}

`python trainer.py --implementation CPG --help` prints those of one agent that act by default, `--help all` every one,
`--help WORD` those with a word, `--plot --help` those of a command. The range and, after *also*, other names that are
accepted stand below the meaning of a setting. These pages are made by `python -m docs.settings_pages`.
"""
TOCTREE = """```{{toctree}}
:hidden:

{names}
```
"""


def pages() -> dict[str, str]:
    """Return path below docs/ -> page as Markdown: a page for runs and environments, for searches and each family."""
    lines_of_page = {"searches": _search_settings()}
    for family in implementations().values():
        lines_of_page[_folder(family)] = _family_settings(family)
    all_pages = {"settings.md": ""}  # the first page, written last because it has links to the others
    titles: dict[str, str] = {}
    for name, lines in sorted(lines_of_page.items(), key=lambda item: _ORDER.index(item[0])):
        text = _text(lines)
        titles[name] = _capitalized(text.partition("\n")[0].removeprefix("# Settings of "))
        # Headings of these pages are one level higher than on the first page.
        all_pages[f"settings/{name}.md"] = re.sub("\n##(#+) ", r"\n#\1 ", text)
    words = _wrap(re.sub(r"(--[a-z_]+|64,64|64 64)", r"`\1`", SYNTAX))  # flags and examples as code
    links = [f"- [{title}](settings/{name}.md)" for name, title in titles.items()]
    introduction = INTRODUCTION.format(words=words, links="\n".join(links))
    end = TOCTREE.format(names="\n".join(f"{title} <settings/{name}>" for name, title in titles.items()))
    all_pages["settings.md"] = _text([introduction, *_run_settings(), *_environment_parameters(), end])
    return all_pages


def _text(parts: Iterable[str]) -> str:
    """Return lines and paragraphs as the text of a page."""
    return "\n".join(parts).rstrip() + "\n"


def _capitalized(heading: str) -> str:
    """Return a heading with a capital as first letter."""
    return heading[0].upper() + heading[1:]


def _folder(family: Family) -> str:
    """Return the name of the folder of a family, such as ``ppo``."""
    return family.package.rpartition(".")[2]


def _run_settings() -> Iterator[str]:
    """Yield the settings of every run and of each command."""
    yield "## Every run\n"
    for config in (RunConfig, *COMMANDS.values()):
        yield from _sections(config())
    yield "### Commands\n"
    yield from _lines(command_flags().values())


def _environment_parameters() -> Iterator[str]:
    """Yield the parameters of each environment that has parameters."""
    from envs.names import GAMES

    yield "## Environments with parameters\n"
    yield "They become part of the environment's name: `--gamename procmaze --grid_size 5` is `procmaze,grid_size=5`."
    yield "The arguments of other environments follow their id in the same way: `LunarLander-v3,gravity=-5.0`.\n"
    for game in GAMES:
        flags = parameters(game)
        if flags:
            yield f"### {game}\n"
            yield from _lines(flags.values())


def _search_settings() -> Iterator[str]:
    """Yield the settings that all searches for proxies have."""
    names = [name for name, family in implementations().items() if family.learns_from == "evolution"]
    yield f"# Settings of all searches ({', '.join(names)})\n"
    yield _wrap(f"{_SEARCH_DEFAULTS} Raised letters are [sources](synthetic.md#sources).") + "\n"
    yield _wrap(
        "Searches learn [synthetic environments](../synthetic_environments.md) and [rewards](../reward_networks.md)."
    )
    yield ""
    yield from _tuned("SE", {**vars(SearchConfig()), **vars(NetworkConfig())})
    sources = _sources(implementations()["SE"])
    for config in (SearchConfig(), NetworkConfig()):
        yield from _sections(config, names, sources=sources, address="synthetic.md#sources")


def _family_settings(family: Family) -> Iterator[str]:
    """Yield the lines of the page of a family: settings, other defaults, sources."""
    folder = _folder(family)
    first, *others = family.implementations
    yield f"# Settings of {', '.join(family.implementations)}\n"
    overrides = {title: values for title, values in _other_defaults(family) if values}
    sources = _sources(family)
    sentences = [_SEARCH_DEFAULTS] if family.learns_from == "evolution" else []
    if overrides:
        owners = [name for name in others if f"`{name}`" in overrides]
        owners += ["some presets"] * bool(family.presets)
        owners += ["agents on proxies"] * bool(family.defaults_on_proxies)
        owners += ["some environments"] * bool(family.game_defaults or family.environment_presets)
        owners_text = " and ".join(filter(None, [", ".join(owners[:-1]), owners[-1]]))
        sentences += [
            f"Defaults beside the names are {first}'s; [other defaults](#other-defaults) are for {owners_text}."
        ]
    if sources:
        sentences += ["Raised letters are [sources](#sources)."]
    yield f"{_wrap(' '.join(sentences))}\n"
    page = _PAGES.get(folder, folder)
    # The first line of the page, such as ``# PPO: ...``, without the part from the colon on.
    title = (DOCS / f"{page}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(":")[0]
    introduction = f"More about these methods is on the page [{title}](../{page}.md)."
    pages = "[the first page](../settings.md)"
    if family.learns_from == "evolution":
        pages += ", settings of all searches on [a common page](searches.md)"
    yield f"{_wrap(f'{introduction} Settings of every run are on {pages}.')}\n"
    # Settings of all searches are on the page of searches.
    shared = {*field_types(SearchConfig), *field_types(NetworkConfig)} if family.learns_from == "evolution" else set()
    config = family.config(**family.implementations[first])
    yield from _tuned(first, {name: value for name, value in vars(config).items() if name not in shared})
    yield from _sections(config, [folder], shared, sources)
    if overrides:
        yield "### Other defaults\n"
        for title, values in overrides.items():
            pairs = ", ".join(f"`{name}` {as_word(value, ',')}" for name, value in values.items())
            yield _wrap(f"- {title}: {pairs}", "  ")
        yield ""
    if sources:
        yield "### Sources\n"
        yield from _source_items(sources)


def _tuned(implementation: str, defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the first eight settings in ``defaults`` (setting -> value) that ``--use_tune`` varies without a
    file. Searches learn a bandit. On the site, names in a table are links to the list (docs/conf.py)."""
    settings = defaults_for({"use_tune": True, "implementation": implementation, "proxy": "bandit"})
    dimensions = [it for it in search_space(settings).dimensions.values() if it.name in defaults and len(it.values) > 1]
    if len(dimensions) > 1:
        yield "| tuned most | default | [search space](../tuning.md#search-spaces) |\n|---|---|---|"
        for dimension in dimensions[:8]:
            yield f"| `{dimension.name}` | `{as_word(defaults[dimension.name], ',')}` | {_range(dimension)} |"
        yield ""


def _range(dimension: Dimension) -> str:
    """Return the values of a hyperparameter as text: ``0.9 to 0.999``, or names."""
    values = (
        [round(1 - value, 6) for value in dimension.values[::-1]] if dimension.kind == "log1m" else dimension.values
    )
    words = [as_word(value, ",") for value in values]
    has_names = isinstance(values[0], str | bool)
    return ", ".join(words) if has_names else f"{words[0]} to {words[-1]}"


def _source_items(sources: Mapping[str, str]) -> Iterator[str]:
    """Yield a list item for every source (letter -> source)."""
    for letter, text in sources.items():
        text = re.sub(r"arXiv (\d{4}\.\d+)", r"[arXiv \1](https://arxiv.org/abs/\1)", text)
        text = re.sub(r"docs/(\w+\.md)", r"[\1](../\1)", text)
        yield _wrap(f"- **{letter}**: {text}.", "  ")


def _sources(family: Family) -> dict[str, str]:
    """Return letter -> source of a family: its own sources, and those of a family whose settings it extends."""
    sources = _sources_in(family.sources)
    helps = " ".join(flag.meta["help"] for flag in flags_of(family.config()).values() if not _is_curiosity(flag))
    letters = {letter for group in re.findall(r"\[([A-Z](?:, [A-Z])*)[]:]", helps) for letter in group.split(", ")}
    for base in family.config.__mro__[1:]:
        if base is not intrinsic.Intrinsic:
            inherited = _sources_in(sys.modules[base.__module__].__doc__ or "")
            sources |= {letter: inherited[letter] for letter in inherited if letter in letters - sources.keys()}
    return sources


def _sources_in(text: str) -> dict[str, str]:
    """Return letter -> source, from a docstring that lists sources; empty if it lists none."""
    match = re.search(r"^Sources?: (.+?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    text = re.sub(r"\s+", " ", match[1]).rstrip(" .") if match else ""
    return dict(re.findall(r"\[([A-Z])\] (.+?)(?=[.,;](?: and)? \[[A-Z]\] |$)", text))


def _is_curiosity(flag: Flag) -> bool:
    """Return whether a setting is of intrinsic rewards, which have sources with letters of their own."""
    return str(flag.section) == "curiosity"


def _with_links(text: str, sources: Mapping[str, str], address: str) -> str:
    """Return the meaning of a setting with its sources, such as ``[B]``, as raised links to the list of sources at
    ``address``, with the start of the source as tooltip. ``sources`` are letter -> source."""

    def link(match: re.Match[str]) -> str:
        before, letters, note = match[1], match[2].split(", "), match[3]
        if not sources.keys() >= {*letters}:
            return match[0]
        starts = [re.split(r"[,(;]", sources[letter])[0].strip().replace('"', "'") for letter in letters]
        links = ", ".join(f'[{letter}]({address} "{start}")' for letter, start in zip(letters, starts, strict=True))
        if before in ("in ", "of "):  # the source is a word of the sentence
            return f"{before}source {links}"
        raised = f"<sup>{links}</sup>"
        return f"{before}({note}){raised}" if note else f"{before.rstrip() if before[0].islower() else before}{raised}"

    return re.sub(r"(in |of |\S ?)\[([A-Z](?:, [A-Z])*)(?:: ([^]]+))?\]", link, text)


def _other_defaults(family: Family) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a title, such as ``on `acrobot` ``, and the values that replace the defaults of the first implementation,
    for each other implementation, preset and environment."""
    first, *others = family.implementations
    first_values = family.implementations[first]
    defaults = vars(family.config(**first_values))
    for name in others:
        values = family.implementations[name]
        config = vars(family.config(**values))
        changed = [setting for setting in {**values, **first_values} if config[setting] != defaults[setting]]
        yield f"`{name}`", {setting: config[setting] for setting in changed}
    for preset, values_by_name in family.presets.items():
        for name, values in values_by_name.items():
            yield f"`--preset {preset}` with `{name}`", values
    for game, values in family.game_defaults.items():
        yield f"on `{game}`", values
    if family.defaults_on_proxies:
        yield "on proxies", family.defaults_on_proxies
    for (name, game, *presets), values in family.environment_presets.items():  # at most one preset
        yield " with ".join([f"`{name}` on `{game}`", *(f"`--preset {preset}`" for preset in presets)]), values


def _sections(
    config: Any,
    families: Sequence[str] = (),
    without: Iterable[str] = (),
    sources: Mapping[str, str] = MappingProxyType({}),
    address: str = "#sources",
) -> Iterator[str]:
    """Yield the lines of the settings of a config below their headings, except the settings in ``without``. The
    ``sources`` (letter -> source) are listed at ``address``."""
    sections: dict[str, list[Flag]] = {name: [] for name in ("", *_HEADINGS)}  # in this order
    for flag in flags_of(config).values():
        if flag.name not in without:
            sections.setdefault(_section(flag), []).append(flag)
    for section, flags in sections.items():
        if section and flags:
            yield f"### {_capitalized(section)}\n"
        if flags and section == "curiosity":
            curiosity_sources = _sources_in(intrinsic.__doc__ or "")
            yield from _lines(flags, families, curiosity_sources, "#sources-of-curiosity")
            yield "#### Sources of curiosity\n"
            yield from _source_items(curiosity_sources)
            yield ""
        elif flags:
            yield from _lines(flags, families, sources, address)


def _section(flag: Flag) -> str:
    """Return the heading of a setting: its declared section, else the declared part of the agent, else its heading in
    `_HEADINGS`. A setting on which the defaults of others depend has no heading (""), unless it declares a section."""
    if flag.section or flag.meta["chooses"]:
        return str(flag.section)
    return str(flag.meta["part"]) or _HEADING_OF.get(flag.name, "learning rule")


def _lines(
    flags: Iterable[Flag],
    families: Sequence[str] = (),
    sources: Mapping[str, str] = MappingProxyType({}),
    address: str = "#sources",
) -> Iterator[str]:
    """Yield a list item for every setting, then an empty line. ``families`` determine the aliases, and ``sources``
    (letter -> source) are listed at ``address``. Allowed values are left out if any number or text is allowed, but a
    switch always shows them."""
    for flag in flags:
        allowed_values = allowed(flag.type, flag.meta)
        if flag.meta.get("choices") and not flag.type.is_list:
            allowed_values = f"one of {allowed_values}"
        is_any_value = allowed_values.removesuffix("; or null") in OBVIOUS_VALUES and flag.type.item is not bool
        allowed_sentence = "" if is_any_value else f" {allowed_values[0].upper()}{allowed_values[1:]}."
        aliases = ", ".join(f"`{name}`" for name in aliases_of(flag.name, families))
        alias_sentence = f" Also {aliases}." if aliases else ""
        help_text = _with_links(flag.meta["help"], sources, address)
        help_text = re.sub(r"(?<![`\w-])--\w+", r"`\g<0>`", help_text)  # flags as code
        stop = "" if help_text.endswith(".") else "."
        start = f"- **`{flag.name}`** (default `{as_word(flag.default, ',') or 'empty'}`): {help_text}{stop}"
        details = f"{allowed_sentence}{alias_sentence}".strip()
        yield _wrap(start, "  ") + ("\\" if details else "")  # Markdown's line break
        if details:
            yield "  " + _wrap(f"*{details}*", "  ")
    yield ""


def _wrap(text: str, indent: str = "") -> str:
    """Return ``text`` in lines of `WIDTH` characters, with ``indent`` before all lines except the first."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    for name, text in pages().items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"written: {path}")
