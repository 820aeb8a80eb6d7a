"""AgileRL's DQN with train_off_policy: checkpoints of the population, DQN.load, training from the loaded agent.

https://docs.agilerl.com/en/latest/api/algorithms/dqn.html#saving-and-loading-agents
These checkpoints contain no replay buffer, so a resumed run starts with an empty one.
"""

import warnings
from pathlib import Path

import numpy as np
import torch
from agilerl.algorithms import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.training.train_off_policy import train_off_policy
from agilerl.vector import DummyVecEnv
from recorded import RecordedCartPole, serve, write_log, write_weights

warnings.filterwarnings("ignore")


def main(folder: Path, algorithm: str, steps: int) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    recorded = RecordedCartPole(folder)
    recorded.reset(seed=1)
    recorded.action_space.seed(1)
    agent = None
    for file in sorted(folder.glob("population_0_*.pt"), key=lambda path: -int(path.stem.split("_")[-1])):
        try:
            agent = DQN.load(str(file), device="cpu")
        except Exception as error:
            write_log(folder, f"unreadable {file.name}: {type(error).__name__}: {str(error)[:200]}")
        else:
            done = int(file.stem.split("_")[-1])
            break
    if agent is None:
        done = 0
        agent = DQN(recorded.observation_space, recorded.action_space, batch_size=32, learn_step=1, lr=1e-3)
    recorded.resume_at(done + 5 * (done // (steps // 8)))  # plus the steps of its tests
    write_log(folder, f"resumed at {done}" if done else "begun")
    train_off_policy(
        DummyVecEnv(recorded),
        "CartPole-v1",
        "DQN",
        [agent],
        ReplayBuffer(max_size=20_000),
        max_steps=steps,
        evo_steps=steps // 8,
        eval_steps=5,
        checkpoint=steps // 8,
        checkpoint_path=str(folder / "population.pt"),
        eps_end=0.05,
        eps_decay=0.998,
        verbose=False,
    )
    write_weights(folder, agent.actor.state_dict().values())


if __name__ == "__main__":
    serve(main)
