"""CartPole for tests of Ctrl-C. A step takes minutes while the file exists that the variable SLOW names. If DEAF is not
empty, no handler of a signal can run meanwhile, as in machine code."""

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class SlowCartPole(CartPoleEnv):
    def step(self, action: Any) -> Any:
        if Path(os.environ["SLOW"]).exists():
            if os.environ["DEAF"]:
                hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
            time.sleep(300)
        return super().step(action)


gymnasium.register("SlowCartPole-v0", SlowCartPole, max_episode_steps=30)
