"""docs/settings.md says what the code says."""

from control.cli.options import flags
from control.cli.reference import PAGE, page
from models.registry import implementations


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m control.cli.reference writes it anew"


def test_the_page_has_every_setting() -> None:
    text = page()
    known = {name for one in implementations() for name in flags(one, "procmaze")}
    assert len(known) > 200 and not [name for name in known if f"- **`{name}`**: " not in text]
