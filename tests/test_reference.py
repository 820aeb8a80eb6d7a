"""docs/settings.md says what the code says."""

from control.cli.options import flags
from control.cli.reference import PAGE, page
from models.registry import implementations


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m control.cli.reference writes it anew"


def test_the_page_has_every_setting() -> None:
    text = page()
    setting_names = {name for implementation in implementations() for name in flags(implementation, "procmaze")}
    assert len(setting_names) > 200 and not [name for name in setting_names if f"- **`{name}`**: " not in text]
