"""Learned synthetic environments and learned rewards for any agent. Needs only NumPy, Gymnasium and safetensors.

    import gymnasium, understudy
    env = gymnasium.make("understudy/SyntheticCartPole-v0")
    env = gymnasium.make("understudy/Synthetic-v0", proxy="runs/proxy.safetensors")
    env = gymnasium.make("understudy:understudy/SyntheticCartPole-v0")  # without the import
    env = understudy.RewardWrapper(gymnasium.make("CartPole-v1"), "runs/proxy.safetensors")

Importing the package registers the ids. ``proxy`` is a file, the folder of a search, or the name of a shipped
environment or reward (`pretrained`). SyntheticCartPole-v0 and SyntheticAcrobot-v0 are contextual bandits, on which any
agent can train. So are SyntheticAcrobotTarget-v0, SyntheticLunarLander-v0, SyntheticLunarLanderContinuous-v0,
SyntheticFrozenLake8x8-v0, SyntheticTaxi-v0, SyntheticMountainCar-v0, SyntheticMountainCarContinuous-v0,
SyntheticPendulum-v0, SyntheticSwimmer-v0, SyntheticHopper-v0 and SyntheticHalfCheetah-v0, whose rewards contain a
policy. Episodes of SyntheticCartPoleMDP-v0 have up to 200 steps; only value-based agents learn well on it. Episodes of
SyntheticCartPoleMDPBroad-v0 have ten steps, and policy-based agents learn well on it too.
"""

from gymnasium.envs.registration import register, registry

from understudy.files import load, pretrained, save
from understudy.policy import Policy, PolicyError
from understudy.proxy import Proxy, ProxyError
from understudy.rewards import RewardVectorWrapper, RewardWrapper

__version__ = "0.1.0"
__all__ = [
    "Policy",
    "PolicyError",
    "Proxy",
    "ProxyError",
    "RewardVectorWrapper",
    "RewardWrapper",
    "load",
    "pretrained",
    "save",
]

# Id -> the game and kind that a proxy with this id must have, and the shipped proxy. `Synthetic-v0` takes any proxy.
IDS: dict[str, dict[str, str]] = {
    "understudy/Synthetic-v0": {},
    "understudy/SyntheticCartPoleMDP-v0": {"proxy": "cartpole-mdp", "game": "cartpole", "kind": "mdp"},
    "understudy/SyntheticCartPoleMDPBroad-v0": {"proxy": "cartpole-mdp-broad", "game": "cartpole", "kind": "mdp"},
    "understudy/SyntheticCartPole-v0": {"proxy": "cartpole-bandit", "game": "cartpole", "kind": "bandit"},
    "understudy/SyntheticAcrobot-v0": {"proxy": "acrobot-bandit", "game": "acrobot", "kind": "bandit"},
    "understudy/SyntheticAcrobotMDP-v0": {"proxy": "acrobot-mdp", "game": "acrobot", "kind": "mdp"},
    "understudy/SyntheticAcrobotTarget-v0": {"proxy": "acrobot-target", "game": "acrobot", "kind": "bandit"},
    "understudy/SyntheticPendulum-v0": {"proxy": "pendulum-bandit", "game": "pendulum", "kind": "bandit"},
    "understudy/SyntheticMountainCarContinuous-v0": {
        "proxy": "mountaincarcontinuous-bandit",
        "game": "mountaincarcontinuous",
        "kind": "bandit",
    },
    "understudy/SyntheticLunarLander-v0": {"proxy": "lunarlander-bandit", "game": "lunarlander", "kind": "bandit"},
    "understudy/SyntheticLunarLanderContinuous-v0": {
        "proxy": "lunarlandercontinuous-bandit",
        "game": "lunarlandercontinuous",
        "kind": "bandit",
    },
    "understudy/SyntheticFrozenLake8x8-v0": {
        "proxy": "frozenlake8x8-bandit",
        "game": "frozenlake8x8",
        "kind": "bandit",
    },
    "understudy/SyntheticTaxi-v0": {"proxy": "taxi-bandit", "game": "taxi", "kind": "bandit"},
    "understudy/SyntheticMountainCar-v0": {"proxy": "mountaincar-bandit", "game": "mountaincar", "kind": "bandit"},
    "understudy/SyntheticSwimmer-v0": {"proxy": "swimmer-bandit", "game": "swimmer", "kind": "bandit"},
    "understudy/SyntheticHopper-v0": {"proxy": "hopper-bandit", "game": "hopper", "kind": "bandit"},
    "understudy/SyntheticHalfCheetah-v0": {"proxy": "halfcheetah-bandit", "game": "halfcheetah", "kind": "bandit"},
}
_ONE, _MANY = "understudy.env:make_synthetic", "understudy.env:SyntheticVectorEnv"

for _id, _kwargs in IDS.items():
    if _id not in registry:
        register(_id, _ONE, vector_entry_point=_MANY, kwargs=dict(_kwargs))
