"""The film at the top of the README: PPO of stable-baselines3, with its default settings, after 10,000 steps on
`cartpole-bandit` balances the pole for 500 steps. Beside it, the same PPO after 10,000 steps on CartPole plays as many
episodes as fit into this time.

    python experiments/synthetic_environments/beside.py --out exp_dir/beside.mp4

The agents are those of seed 4 in docs/results/default_ppo.json, the median on CartPole. A GIF is written beside the
mp4, and both again in the colours of a dark page: ``beside_dark``. The first second shows the last frame.

Needs the `bench` extra.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from control.films.encoding import gif, mp4
from control.films.pictures import Frame, add_caption, place_side_by_side
from control.reports.figures import INKS, PAPER, THEMES, check_writable
from envs.make import make_environment
from experiments.comparison import run_script, script_flags
from experiments.synthetic_environments.transfer import PROXIES, train
from models.streams import Streams

STEPS = 500  # of the film
TRAINING_STEPS = 10_000
SEED = 4
FALLEN = 14  # frames for which a fallen pole is shown
LETTERS = 40  # height in pixels
TOP, BOTTOM = 130, 350  # rows of a frame between which all happens
FRAME_RATE = 50.0  # CartPole's steps in a second


class Half:
    """A half of the film: the episodes of an agent of stable-baselines3, one after another."""

    def __init__(self, agent: Any, caption: str):
        self.agent, self.caption = agent, caption
        self.environment: Any = make_environment("cartpole", 1, 1, render=True)
        self.seeds = Streams.from_name([0], "film").episode_seeds(STEPS)[0]
        self.episode = self.pause = 0  # frames left of the fallen pole
        self.start()

    def start(self) -> None:
        """Start the next episode."""
        self.obs, self.step = self.environment.reset(self.seeds[self.episode].view(1, 1)), 0
        self.episode += 1

    def advance(self) -> None:
        """Make a step, or wait after a fall."""
        if self.pause:
            self.pause -= 1
            if not self.pause:
                self.start()
            return
        actions, _ = self.agent.predict(self.obs[0].numpy(), deterministic=True)
        step = self.environment.step(torch.as_tensor(actions)[None])
        self.obs, self.step = step.obs, self.step + 1
        self.pause = FALLEN if step.done.item() else 0

    def picture(self) -> Frame:
        """Return the current frame with two lines of text."""
        frame = self.environment.frame(0, 0)[TOP:BOTTOM]
        steps = f"episode {self.episode}: {self.step} step{'s' * (self.step != 1)}"
        return add_caption(frame, [[self.caption], [steps]], LETTERS)


def coloured(picture: Frame, theme: str) -> Frame:
    """Return two halves side by side in the colours of a theme. White paper with black ink above, and dark paper with
    white ink below, become the paper and the ink of the theme. The pole keeps its colour."""
    paper = np.array(list(bytes.fromhex(PAPER[theme][1:])))  # red, green and blue of "#ffffff"
    ink = np.array(list(bytes.fromhex(INKS[theme][1:])))
    height = BOTTOM - TOP  # of the animation, above the text
    values = picture.astype(float)
    shade = values.mean(-1, keepdims=True) / 255  # 0 for black
    shade[:height] = 1 - shade[:height]
    greys = paper + (ink - paper) * shade
    chroma = np.ptp(values, -1, keepdims=True)  # 0 for greys; only the pole has a colour
    # A pixel at the edge of the pole is a mixture with white paper.
    pole = values - (1 - (chroma / 100).clip(0, 1)) * (255 - paper)
    pole[height:] = greys[height:]
    return np.where(chroma > 20, pole, greys).clip(0, 255).astype(np.uint8)


def film(out: Path) -> None:
    """Write the film as ``out`` with the suffix .mp4, light and dark, and a GIF beside each."""
    paths = [out.with_suffix(".mp4"), out.with_stem(f"{out.stem}_dark").with_suffix(".mp4")]
    check_writable("out", *paths, *(path.with_suffix(".gif") for path in paths))
    halves = []
    for trained_on, name in (("bandit", "the network"), ("real", "CartPole")):
        agent = train("PPO by default", trained_on, TRAINING_STEPS, SEED, PROXIES["bandit"], "CartPole-v1")
        halves.append(Half(agent, f"trained on {name}"))
    pictures = []
    for _ in range(STEPS):
        pictures.append(place_side_by_side([half.picture() for half in halves]))
        for half in halves:
            half.advance()
    # A page that does not play the film shows its first frame.
    pictures = [place_side_by_side([half.picture() for half in halves])] * round(FRAME_RATE) + pictures
    for path, theme in zip(paths, THEMES, strict=True):
        with mp4(path, FRAME_RATE) as add_frame:
            for picture in pictures:
                add_frame(coloured(picture, theme))
        print(path, gif(path), sep="\n")
    print(*(f"{half.caption}: {half.episode} episodes" for half in halves), sep="\n")


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("--out", type=Path, required=True)
    options = flags.parse_args(argv)
    torch.set_num_threads(1)
    return run_script(lambda: film(options.out))


if __name__ == "__main__":
    sys.exit(main())
