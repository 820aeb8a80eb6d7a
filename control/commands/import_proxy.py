"""`--import_proxy`: convert a synthetic environment or a reward network of another project to a proxy file."""

import dataclasses
from pathlib import Path

import numpy as np
import torch

from control.cli.settings import Settings, agents_of
from control.commands.summary import command, show_next
from control.storage import run_dir
from envs.make import spaces_of
from envs.names import resolve
from models.proxies import files, originals
from models.registry import search_defaults
from models.settings import SettingError, check
from understudy.files import PROXY_FILE, file_error


def import_proxy(settings: Settings) -> int:
    """Convert the file of ``--import_proxy``, such as NAME.pt, to ``LOGDIR/GAME/imported/NAME/proxy.safetensors``.
    Returns 0. Raises ProxyError for a file without a proxy (a learned environment or reward), and SettingError if its
    environment is unknown or the new file exists."""
    run, path = settings.run, Path(settings.subcommand.import_proxy)
    original = originals.read(path)
    game = run.gamename if "gamename" in settings.explicit_names else _game_of_file(original, path)
    spaces, tensors = spaces_of(game), dict(original.tensors)
    if original.kind == "bandit":  # the inputs are observation and action; in our networks the action is first
        tensors["reward.0.weight"] = np.roll(tensors["reward.0.weight"], -spaces.obs_shape[0], axis=1)
    implementation, choices = files.implementation_of(original.kind), {"proxy": original.kind}
    agent = original.agents.get("agent", agents_of(implementation, game, choices))
    _, config = search_defaults(implementation, game, choices, agent)
    # Settings ``rn_...`` may scale inputs and outputs of a reward network. The defaults of a search do that. Networks
    # of other projects need no scaling, so they get the defaults of the class.
    unscaled = {field.name: field.default for field in dataclasses.fields(config) if field.name.startswith("rn_")}
    config = dataclasses.replace(config, **{**unscaled, **original.settings, "proxy": original.kind})
    try:
        check(config)
        parameters, views = files.zero_parameters(config, spaces)  # [D], and name of a tensor -> view of its part
    except SettingError as error:
        raise file_error(path, f"its setting {error}", "settings of a proxy") from error
    for key in sorted(tensors.keys() | views.keys()):
        shape = list(tensors[key].shape) if key in tensors else None
        expected_shape = list(views[key].shape) if key in views else None
        if shape != expected_shape:
            raise file_error(path, f"its tensor {key} is {shape or 'missing'}", f"{expected_shape} with {game}")
    for key, view in views.items():
        view.copy_(torch.tensor(tensors[key]))  # writes into ``parameters``
    proxy_path = Path(run.logdir, run_dir.safe_name(game), "imported", run_dir.safe_name(path.stem), PROXY_FILE)
    if proxy_path.exists():
        problem = f"import_proxy: {str(proxy_path)!r} exists"
        raise SettingError(f"{problem}; move it away, or give another --logdir", "import_proxy")
    proxy_path.parent.mkdir(parents=True, exist_ok=True)
    description = {"settings": {"agent": agent, **original.agents}, "imported_from": path.name}
    files.save(proxy_path, parameters, config=config, spaces=spaces, game=game, description=description)
    lines = [("proxy", proxy_path), ("which is", f"{original.kind} of {game}")]
    show_next(lines, [command(settings, "--eval_agent", proxy_path)])
    return 0


def _game_of_file(original: originals.Original, path: Path) -> str:
    """Return the environment of a proxy file of another project. Its name is in the content of the file or, if that has
    none, in its ``path``: it is the name of the file, or the name of its folder if the file is called checkpoint.
    Raises SettingError if the environment is unknown."""
    name = original.game
    if not name:
        name = path.parent.name if path.stem == "checkpoint" else path.stem
    if name == "continuous_mountaincar":  # the name in synthetic-gymnax
        name = "mountaincar-continuous"
    try:
        return resolve(name).name
    except SettingError as error:
        raise SettingError(f"import_proxy: {error}; give --gamename", "import_proxy") from error
