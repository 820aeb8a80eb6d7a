"""Gymnasium ids of learned synthetic environments and of our own worlds; importing this registers them. Imports no
torch.

    gymnasium.make("envs:SyntheticCartPole-v0")  # the shipped stand-in for CartPole
    gymnasium.make("envs:Synthetic-v0", proxy="runs/proxy.safetensors")  # any
    gymnasium.make("envs:ProcMaze-v0", grid_size=4, render_mode="rgb_array", max_episode_steps=100)

Each id is there with and without the namespace: ``understudy/SyntheticCartPole-v0`` and, meant for the form above,
``SyntheticCartPole-v0``. Gymnasium 1.4 loads no plugins, so that ``envs`` or this must be imported by someone.
``proxy`` is a file, a search's folder or a shipped name; see `envs.proxy_gym` for what else they take.
"""

from gymnasium.envs.registration import register, registry

NAMESPACE = "understudy"
# Id -> the game and kind a stand-in must have to be called so, and the shipped one. `Synthetic-v0` takes any.
IDS: dict[str, dict[str, str]] = {
    "Synthetic-v0": {},
    "SyntheticCartPole-v0": {"proxy": "cartpole-mdp", "game": "cartpole", "kind": "mdp"},
    "SyntheticCartPoleBandit-v0": {"proxy": "cartpole-bandit", "game": "cartpole", "kind": "bandit"},
    "SyntheticAcrobotBandit-v0": {"proxy": "acrobot-bandit", "game": "acrobot", "kind": "bandit"},
}

# Worlds of ours: id -> dynamics, whose parameters `gymnasium.make` takes.
WORLDS = {
    "ProcMaze-v0": "envs.procmaze:ProcMaze",
    "OpenGrid-v0": "envs.opengrid:OpenGrid",
    "ButtonGrid-v0": "envs.buttongrid:ButtonGrid",
    "PanFlute-v0": "envs.panflute:PanFlute",
}

for _name, _kwargs in IDS.items():
    for _id in (_name, f"{NAMESPACE}/{_name}"):
        if _id not in registry:
            register(
                _id,
                entry_point="envs.proxy_gym:make_synthetic",
                vector_entry_point="envs.proxy_gym:SyntheticVectorEnv",
                kwargs=dict(_kwargs),
            )

for _name, _dynamics in WORLDS.items():
    for _id in (_name, f"{NAMESPACE}/{_name}"):
        if _id not in registry:
            register(_id, entry_point="envs.tensor_gym:TensorGym", kwargs={"dynamics": _dynamics})
