"""docs/settings.md and docs/settings/ say what the code says."""

from control.cli.options import flags
from control.cli.reference import DOCS, pages
from models.registry import implementations


def test_the_pages_of_settings_are_up_to_date() -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("settings/*")}
    assert written | {"settings.md"} == pages().keys()
    for name, text in pages().items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, "python -m control.cli.reference writes it anew"


def test_the_pages_have_every_setting() -> None:
    text = "".join(pages().values())
    setting_names = {name for implementation in implementations() for name in flags(implementation, "procmaze")}
    assert len(setting_names) > 200 and not [name for name in setting_names if f"- **`{name}`** (" not in text]
