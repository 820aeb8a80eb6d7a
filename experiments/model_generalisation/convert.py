"""Print a configuration file of the original code as YAML with our names.

    python experiments/model_generalisation/convert.py configs/ER.json > er.yaml

`trainer.py --config` reads the original file too. This script shows the translation (`control.cli.originals`).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from control.cli.parse import parse
from control.cli.settings import to_yaml
from experiments.comparison import run_script


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    return run_script(lambda: print(to_yaml(parse(["--config", argv[0]])), end=""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
