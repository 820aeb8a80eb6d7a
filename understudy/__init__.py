"""Learned synthetic environments and learned rewards for any agent. Needs only NumPy, Gymnasium and safetensors.

>>> import gymnasium, understudy
>>> env = gymnasium.make("understudy/SyntheticCartPole-v0")
>>> env = gymnasium.make("understudy/Synthetic-v0", proxy="cartpole-bandit")  # the same
>>> env = gymnasium.make("understudy:understudy/SyntheticCartPole-v0")  # without the import
>>> envs = gymnasium.make_vec("understudy/SyntheticCartPole-v0", num_envs=8, vectorization_mode="vector_entry_point")

Importing the package registers the ids. ``proxy`` is a file, the run folder of a search, or the name of a shipped
environment or reward (`pretrained`).
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

_BANDITS = (
    "CartPole Acrobot Pendulum MountainCarContinuous LunarLander LunarLanderContinuous FrozenLake8x8 Taxi MountainCar "
    "Swimmer Hopper HalfCheetah BipedalWalker Walker2d"
).split()
# NAME in an id understudy/SyntheticNAME-v0 -> name of a shipped proxy.
_SHIPPED = {
    "CartPoleMDP": "cartpole-mdp",
    "CartPoleMDPBroad": "cartpole-mdp-broad",
    "AcrobotMDP": "acrobot-mdp",
    "AcrobotTarget": "acrobot-target",
} | {name: f"{name.lower()}-bandit" for name in _BANDITS}
# Id -> its arguments. With any id, the argument ``proxy`` may be another proxy; the first id has no default for it.
IDS: dict[str, dict[str, str]] = {"understudy/Synthetic-v0": {}} | {
    f"understudy/Synthetic{name}-v0": {"proxy": proxy} for name, proxy in _SHIPPED.items()
}
_ENTRY_POINT, _VECTOR_ENTRY_POINT = "understudy.env:make_synthetic", "understudy.env:SyntheticVectorEnv"

for _id, _kwargs in IDS.items():
    if _id not in registry:
        register(_id, _ENTRY_POINT, vector_entry_point=_VECTOR_ENTRY_POINT, kwargs=dict(_kwargs))
