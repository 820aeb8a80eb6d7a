"""Learned environments and rewards on disk: safetensors files. They contain only numbers and text, so opening a file
runs no code.

A file has one tensor per weight and per bias, named and laid out as in ``torch.nn.Linear``. The metadata has one key,
``understudy``: JSON with ``format``, ``game``, ``spaces``, ``config``, ``description`` and ``digest`` (a SHA-256 of
everything else, optional in files from other programs). Files of equal proxies have equal bytes.
"""

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors import numpy as safetensors_numpy

from understudy.kinds import KINDS, Json, Kind
from understudy.proxy import Proxy, ProxyError

SUFFIX = ".safetensors"
PROXY_FILE = "proxy.safetensors"  # name of the winner in the folder of a search
HUB = "hf://"  # beginning of a name on the Hugging Face Hub
SHIPPED = Path(__file__).resolve().parent / "pretrained"

_FORMAT, _KEY = 1, "understudy"
_ALLOWED = f"a {SUFFIX} file of a learned environment or reward"
# Allowed keys of the header. Only older files have ``networks``.
_HEADER = {"format", "game", "spaces", "config", "description", "digest", "networks"}
_SPACES = {"obs_shape", "actions", "max_episode_steps", "max_return"}
_MAX_TEXT = 2**20  # largest number of characters of metadata
_MAX_HEADER = 8 * _MAX_TEXT  # largest number of bytes of the whole header
_MAX_BOUND = 1.7e38  # largest bound of an action, so that the distance of two bounds fits into float32


def pretrained() -> dict[str, Path]:
    """List the learned environments and rewards in this package.

    >>> list(understudy.pretrained())[:3]
    ['acrobot-bandit', 'acrobot-mdp', 'acrobot-target']

    :return: The files by name, such as ``cartpole-bandit``.
    """
    return {path.stem: path for path in sorted(SHIPPED.glob(f"*{SUFFIX}"))}


def fetch(name: object, default: str) -> Path | None:
    """Download the file ``name``, ``hf://user/name/FILE``, from the Hugging Face Hub, and return its path on disk. If
    the name has no FILE, download the file ``default``. Return None for a name that does not begin with hf://. Raises
    ProxyError if the download fails."""
    if not str(name).startswith(HUB):
        return None
    repo_and_file = re.fullmatch(HUB + r"([^/]+/[^/]+)(?:/(.+))?", str(name))
    try:
        if repo_and_file is None:
            raise ValueError("it has no user and name")
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(repo_and_file[1], repo_and_file[2] or default))
    except (ImportError, OSError, ValueError) as error:  # also no connection, no permission, and an invalid name
        reason = "pip install huggingface_hub" if isinstance(error, ImportError) else " ".join(str(error).split())[:300]
        raise ProxyError(f"{str(name)!r} cannot be loaded ({reason}); allowed: {HUB}user/name[/FILE]") from error


def load(name_or_path: str | Path) -> Proxy:
    """Load a learned environment or reward.

    >>> proxy = understudy.load("cartpole-bandit")
    >>> proxy.kind, proxy.game, proxy.action_space
    ('bandit', 'cartpole', Discrete(2))

    :param name_or_path: A file, the run folder of a search, the name of a shipped environment or reward (`pretrained`),
        or a file on the Hugging Face Hub (``hf://user/name`` or ``hf://user/name/FILE``). A path that exists takes
        precedence over a name.
    :return: The content of the file.
    :raises ProxyError: There is no such file, or its content is not valid. The message suggests the nearest path or
        name.
    """
    downloaded_file = fetch(name_or_path, PROXY_FILE)
    if downloaded_file is not None:
        return _read(downloaded_file, label=downloaded_file)
    shipped_files = pretrained()
    try:
        path = Path(name_or_path).expanduser()
        candidates = [path, path / PROXY_FILE]  # in order of precedence
        if str(name_or_path) in shipped_files:
            candidates.append(shipped_files[str(name_or_path)])
        files = [candidate for candidate in candidates if candidate.is_file()]
        siblings = [] if files else [str(other) for other in path.parent.glob(f"*{SUFFIX}") if other.is_file()]
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # no path, too long, no permission
        reason = getattr(error, "strerror", None) or error
        raise ProxyError(f"proxy is {_short_text(name_or_path)} ({reason}); allowed: {_ALLOWED}") from error
    if files:
        return _read(files[0], label=files[0])
    suggestion = nearest(str(name_or_path), [*shipped_files, *siblings])
    hint = f"{suggestion} Allowed:" if suggestion else "; allowed:"
    shipped = f", or one of {', '.join(shipped_files)}" if shipped_files else ""
    raise ProxyError(f"proxy is {str(name_or_path)!r}{hint} a {SUFFIX} file{shipped}")


def save(
    path: str | Path, tensors: Mapping[str, np.ndarray], *, game: str, spaces: Json, config: Json, description: Json
) -> None:
    """Write a learned environment or reward, with the content of a `Proxy`. After an error, the file is unchanged.

    >>> texts = {"game": proxy.game, "spaces": proxy.spaces, "config": proxy.config}
    >>> understudy.save("copy.safetensors", proxy.tensors, description={"author": "me"}, **texts)

    :param path: The file, which is replaced atomically if it exists.
    :param tensors: Parameters of the networks.
    :param game: Name of the real environment.
    :param spaces: Description of its spaces.
    :param config: Settings of the networks and of the search.
    :param description: JSON. Numbers in it that are not finite become null.
    :raises ProxyError: `load` would refuse the file.
    :raises OSError: The file cannot be written.
    """
    path = Path(path)
    # Python's JSON writes numbers that are not finite as words, which are not valid JSON.
    plain = json.loads(json.dumps(description), parse_constant=lambda word: None)
    header = {"format": _FORMAT, "game": game, "spaces": spaces, "config": config, "description": plain}
    layers = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    header["digest"] = _digest(header, layers)
    # Only one key, because the library writes several keys in varying order.
    metadata = {_KEY: json.dumps(header, allow_nan=False)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(safetensors_numpy.save(layers, metadata))
            file.flush()
            os.fsync(file.fileno())
        _read(temporary, label=path)  # raises ProxyError if `load` would refuse the file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def file_error(path: Path, fault: str, allowed: str) -> ProxyError:
    """Return the error about the file at ``path``. Its message has the ``fault``, which may end with a question, as in
    `nearest`, and the ``allowed`` files."""
    separator = " Allowed" if fault.endswith("?") else "; allowed"
    return ProxyError(f"proxy {str(path)!r}: {fault}{separator}: {allowed}")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the question ``"; did you mean 'x'?"`` about a mistyped ``name``, or ``""`` if none of ``names`` is
    near."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.55)
    return f"; did you mean '{close[0]}'?" if close else ""


def _read(file: Path, label: Path) -> Proxy:
    """Read and check ``file``. Raises ProxyError if its content is not valid. In errors and in the result, its path is
    ``label``, because `save` checks a temporary file."""
    try:
        with open(file, "rb") as opened:
            start = opened.read(8)
            header_size = int.from_bytes(start, "little")
            if start[:4] == b"PK\x03\x04":  # a zip archive
                raise file_error(label, "it is a checkpoint", _ALLOWED)
            if header_size > _MAX_HEADER:
                raise file_error(label, f"not a whole safetensors file (a header of {header_size:,} bytes)", _ALLOWED)
        with safe_open(file, "np") as opened:
            header = _parse_metadata(label, (opened.metadata() or {}).get(_KEY, "null"))
            # Check dtypes and shapes against the settings before memory is allocated.
            layers = {name: opened.get_slice(name) for name in opened.keys()}
            tensor_specs = {name: (layer.get_dtype(), layer.get_shape()) for name, layer in layers.items()}
            _check(label, header, tensor_specs)
            kind = KINDS[header["config"]["proxy"]]
            config = kind.defaults | header["config"]
            tensors = {name: opened.get_tensor(name) for name in kind.shapes(config, header["spaces"])}
    except OSError as error:
        raise file_error(label, f"cannot be read ({error.strerror or error})", _ALLOWED) from error
    except SafetensorError as error:
        raise file_error(label, f"not a whole safetensors file ({error})", _ALLOWED) from error
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise file_error(label, f"tensor {name} holds numbers that are not finite", "finite numbers")
    digest = _digest(header, tensors)
    if header.get("digest", digest) != digest:
        raise file_error(label, "it is not as it was written: its digest is another", _ALLOWED)
    return Proxy(label, header["game"], header["spaces"], config, header["description"], tensors)


def _digest(header: Json, tensors: Mapping[str, np.ndarray]) -> str:
    """Return a hash of all numbers and text of a file, except for the entry ``digest`` of its ``header``."""
    header_text = json.dumps({name: part for name, part in header.items() if name != "digest"}, sort_keys=True)
    tensor_parts = [f"{name} {tensors[name].shape} ".encode() + tensors[name].tobytes() for name in sorted(tensors)]
    return hashlib.sha256(b"".join([header_text.encode(), *tensor_parts])).hexdigest()


def _parse_metadata(path: Path, text: str) -> Any:
    """Parse ``text``, the metadata of the file at ``path``. Raises ProxyError if they are no JSON, or too long."""
    try:
        if len(text) > _MAX_TEXT:
            raise ValueError(f"{len(text):,} characters")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise file_error(path, "its metadata are damaged", "JSON as `save` writes it") from error


def _short_text(value: Any) -> str:
    """Return a value as text for an error message, cut off if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits or brackets
        return f"a {type(value).__name__}"
    return text if len(text) <= 120 else f"{text[:120]}..."


def _check(path: Path, header: Any, tensor_specs: Mapping[str, tuple[str, list[int]]]) -> None:
    """Raise ProxyError for the first fault in the ``header`` or in the tensors of the file at ``path``.
    ``tensor_specs`` maps the name of a tensor to its dtype and shape, such as ``("F32", [4, 2])``."""
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise file_error(path, f"a safetensors file without {_KEY!r} metadata of format {_FORMAT}", _ALLOWED)
    for name in header.keys() - _HEADER:
        raise file_error(path, f"its metadata {_short_text(name)} are unknown", ", ".join(sorted(_HEADER)))
    for name in ("game", "spaces", "config", "description"):
        if not isinstance(header.get(name), str if name == "game" else dict):
            raise file_error(path, f"its {name} is missing or damaged", f"a {name} as `save` writes it")
    if not header["game"].strip() or not header["game"].isprintable() or len(header["game"]) > 200:
        raise file_error(path, f"its game is {_short_text(header['game'])}", "the name of an environment")
    settings = header["description"].get("settings", {})
    if not isinstance(settings, dict) or not isinstance(settings.get("agent", ""), str):
        raise file_error(path, "its description.settings are damaged", "a mapping as `save` writes it")
    config = header["config"]
    kind_name = config.get("proxy")
    if not isinstance(kind_name, str) or kind_name not in KINDS:
        raise file_error(path, f"its setting proxy is {_short_text(kind_name)}", ", ".join(KINDS))
    kind = KINDS[kind_name]
    config = kind.defaults | config
    for name, (is_valid, allowed) in kind.settings.items():
        if name not in config:
            raise file_error(path, f"its setting {name} is missing", f"all of {', '.join(kind.settings)}")
        if not is_valid(config[name]):
            raise file_error(path, f"its setting {name} is {_short_text(config[name])}", allowed)
    if not _are_spaces(header["spaces"], config, kind):
        raise file_error(
            path, f"its spaces are damaged: {_short_text(header['spaces'])}", "spaces as `save` writes them"
        )
    expected = kind.shapes(config, header["spaces"])
    for name in sorted(expected.keys() - tensor_specs):
        raise file_error(path, f"tensor {name} is missing", f"all of {', '.join(expected)}")
    for name in sorted(tensor_specs.keys() - expected):
        raise file_error(path, f"tensor {_short_text(name)} is unknown", ", ".join(expected))
    for name, shape in expected.items():
        if tensor_specs[name] != ("F32", shape):
            raise file_error(path, f"tensor {name} is {tensor_specs[name][0]} {tensor_specs[name][1]}", f"F32 {shape}")


def _are_spaces(spaces: Json, config: Json, kind: Kind) -> bool:
    """Return whether the ``spaces`` of a file are valid: the size of an observation, the actions, the time limit, the
    maximum return, and the entries that the ``kind`` needs with the settings ``config``."""
    try:
        (obs_size,), actions = spaces["obs_shape"], spaces["actions"]
        limit, max_return = spaces["max_episode_steps"], spaces["max_return"]  # None if there is none
        if spaces.keys() != _SPACES | set(kind.spaces) or actions.keys() not in ({"n"}, {"low", "high"}):
            return False
        low, high = actions.get("low", []), actions.get("high", [])
        counts = [obs_size, actions.get("n", len(low)), 1 if limit is None else limit]
        numbers = [*low, *high, 0 if max_return is None else max_return]
        return (
            all(type(count) is int and 1 <= count < 2**63 for count in counts)  # they fit into int64
            and all(type(number) in (int, float) and abs(number) <= _MAX_BOUND for number in numbers)
            and all(np.float32(a) < np.float32(b) for a, b in zip(low, high, strict=True))  # also after rounding
            and kind.fits(config, spaces)
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
