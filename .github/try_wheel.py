"""Use the installed package outside the checkout: python try_wheel.py VERSION"""

import sys

import gymnasium

import understudy

assert understudy.__version__ == sys.argv[1], f"the tag says {sys.argv[1]}, the package {understudy.__version__}"
for name in understudy.IDS:
    proxy = {} if understudy.IDS[name] else {"proxy": "cartpole-bandit"}
    env = gymnasium.make(name, **proxy)
    env.reset(seed=0)
    env.step(env.action_space.sample())
rewarded = understudy.RewardWrapper(gymnasium.make("CliffWalking-v1"), "cliffwalking-additive-potential")
rewarded.reset(seed=0)
rewarded.step(0)
assert not {"torch", "control", "models", "envs"} & set(sys.modules)
print(f"understudy {understudy.__version__}: {len(understudy.IDS)} environments, {len(understudy.pretrained())} files")
