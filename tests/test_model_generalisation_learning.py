"""Learning of agents with models: as well as the original, on settings small enough to run both."""

import json
from pathlib import Path

import pytest

from fake_runs import load_script

parity = load_script("model_generalisation/parity")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fixture", "agent", "steps"), [("A", "PerfectModel", 20_000), ("B", "CategoricalLatent", 5000)]
)
def test_it_learns_as_the_original_does(fixture: str, agent: str, steps: int, tmp_path: Path) -> None:
    """Ten seeds of ours against ten of the original's: each of three points within two of its standard errors."""
    argv = ["--fixture", fixture, "--agents", agent, "--num_steps", str(steps), "--logdir", str(tmp_path / "exp_dir")]
    assert parity.main([*argv, "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == 3
    assert [row for row in rows if not row["within"]] == []
