"""TorchRL's DQNTrainer with its unified checkpoints: CheckpointRotation, GlobalRNGState, load_from_file(latest()).

https://docs.pytorch.org/rl/0.14/reference/checkpoint.html
https://docs.pytorch.org/rl/0.14/reference/generated/torchrl.trainers.algorithms.DQNTrainer.html
"""

import warnings
from pathlib import Path

import torch
from recorded import RecordedCartPole, serve, write_log, write_weights
from tensordict.nn import TensorDictSequential
from torchrl.checkpoint import Checkpoint, CheckpointRotation, GlobalRNGState
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymWrapper
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate
from torchrl.trainers.algorithms import DQNTrainer

warnings.filterwarnings("ignore")


def main(folder: Path, algorithm: str, steps: int) -> None:
    torch.manual_seed(1)
    recorded = RecordedCartPole(folder)
    env = GymWrapper(recorded, categorical_action_encoding=True)
    env.set_seed(1)
    value = QValueActor(MLP(4, 2, num_cells=[64, 64]), in_keys=["observation"], spec=env.action_spec)
    greedy = EGreedyModule(env.action_spec, annealing_num_steps=steps // 2, eps_init=1.0, eps_end=0.05)
    collector = Collector(
        env, TensorDictSequential(value, greedy), frames_per_batch=50, total_frames=-1, init_random_frames=50
    )
    loss = DQNLoss(value, action_space=env.action_spec, delay_value=True)
    loss.make_value_estimator()  # otherwise it is created while learning, and a fresh loss cannot load its state
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20_000), batch_size=32)
    rotation = CheckpointRotation(folder / "rotation", keep_last=3)
    trainer = DQNTrainer(
        collector=collector,
        total_frames=steps,
        frame_skip=1,
        optim_steps_per_batch=25,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), lr=1e-3),
        replay_buffer=buffer,
        enable_logging=False,
        target_net_updater=SoftUpdate(loss, eps=0.99),
        greedy_module=greedy,
        progress_bar=False,
        seed=1,
        save_trainer_interval=steps // 8,
        checkpoint=Checkpoint(rng=GlobalRNGState()),
        checkpoint_rotation=rotation,
    )
    done = 0
    for path in reversed(rotation.checkpoints()):
        try:
            trainer.load_from_file(path)
        except Exception as error:
            write_log(folder, f"unreadable {path.name}: {type(error).__name__}: {str(error)[:200]}")
        else:
            done = trainer.collected_frames
            break
    recorded.resume_at(done)
    write_log(folder, f"resumed at {done}" if done else "begun")
    trainer.train()
    write_weights(folder, loss.value_network_params.flatten_keys().values())


if __name__ == "__main__":
    serve(main)
