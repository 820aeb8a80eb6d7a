"""stable-baselines3 as its guide says: CheckpointCallback, load, load_replay_buffer, learn(reset_num_timesteps=False).

https://stable-baselines3.readthedocs.io/en/master/guide/callbacks.html#checkpointcallback
https://stable-baselines3.readthedocs.io/en/master/guide/examples.html#advanced-saving-and-loading
"""

from pathlib import Path

from recorded import RecordedCartPole, serve, write_log, write_weights
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import CheckpointCallback

SETTINGS = {
    "PPO": (PPO, {"n_steps": 128}),
    "DQN": (DQN, {"learning_starts": 200, "buffer_size": 20_000, "target_update_interval": 200}),
}


def newest(folder: Path, kind, env):
    """Load the newest readable checkpoint; None if there is no readable one."""
    for file in sorted(folder.glob("model_*_steps.zip"), key=lambda path: -int(path.stem.split("_")[1])):
        try:
            model = kind.load(file, env=env, device="cpu")
            if kind is DQN:
                model.load_replay_buffer(file.with_name(f"model_replay_buffer_{file.stem.split('_')[1]}_steps.pkl"))
        except Exception as error:
            write_log(folder, f"unreadable {file.name}: {type(error).__name__}")
        else:
            return model
    return None


def main(folder: Path, algorithm: str, steps: int) -> None:
    kind, settings = SETTINGS[algorithm]
    env = RecordedCartPole(folder)
    model = newest(folder, kind, env)
    env.resume_at(model.num_timesteps if model else 0)
    write_log(folder, f"resumed at {model.num_timesteps}" if model else "begun")
    model = model or kind("MlpPolicy", env, seed=1, device="cpu", **settings)
    saving = CheckpointCallback(steps // 8, str(folder), "model", save_replay_buffer=True)
    model.learn(steps - model.num_timesteps, callback=saving, reset_num_timesteps=False)
    write_weights(folder, model.policy.state_dict().values())


if __name__ == "__main__":
    serve(main)
