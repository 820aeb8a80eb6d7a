"""`--push_to_hub`: upload an agent or a proxy to the Hugging Face Hub, with its settings and a model card."""

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from control.storage.versions import versions
from models.settings import SettingError, UserError
from understudy.policy import AGENT


def check_hub(name: str) -> None:
    """Raise SettingError if ``name`` is not a valid name on the hub, or if nobody is logged in."""
    from huggingface_hub import get_token

    has_form = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name, re.ASCII)  # user/name
    if not has_form or "--" in name or ".." in name:
        allowed = "user/name, of letters, digits and single '-', '_' and '.'"
        raise SettingError(f"push_to_hub is {name!r}, no name on the hub; allowed: {allowed}", "push_to_hub")
    if not get_token():
        advice = "type hf auth login, or set HF_TOKEN"
        raise SettingError(f"push_to_hub is {name!r}, but nobody is logged in: {advice}", "push_to_hub")


def push(name: str, write: Callable[[Path], object], config: str, rows: Mapping[str, object], result: str) -> None:
    """Upload a model to ``name`` (``user/name``) on the hub: the file that ``write(folder)`` writes, the text
    ``config`` as config.yaml, and a model card. The card has a table with ``rows`` (name -> value), whose first two,
    algorithm and environment, are the title, and the text ``result`` of an evaluation. Raises UserError if the upload
    fails."""
    from huggingface_hub import HfApi

    title_names = [str(value) for value in list(rows.values())[:2]]
    title = " on ".join(title_names)
    rows = {**rows, "versions": ", ".join(f"{key} {value}" for key, value in versions().items())}
    table = "\n".join(f"| {key} | {str(value).replace('|', '/')} |" for key, value in rows.items())
    tags = json.dumps(["reinforcement-learning", *title_names])  # a list in JSON is also YAML
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write(folder)
        function = "Policy" if (folder / AGENT).exists() else "load"
        call = f'understudy.{function}("hf://{name}")'
        # The card is Markdown with a header in YAML, which the hub reads.
        card = f"---\nlibrary_name: understudy\ntags: {tags}\n---\n\n# {title}\n\n| | |\n|---|---|\n{table}\n"
        card += f"\n```\n{result}\n```\n\n```python\nimport understudy\n\n{call}\n```\n"
        (folder / "README.md").write_text(card, encoding="utf-8")
        (folder / "config.yaml").write_text(config, encoding="utf-8")
        try:
            HfApi().create_repo(name, exist_ok=True)
            HfApi().upload_folder(repo_id=name, folder_path=folder)
        except Exception as error:  # any error of the HTTP library: no permission, no connection, a refused name
            raise UserError(f"push_to_hub is {name!r}, which failed: {error}") from error
    print(f"hub: {call}")
