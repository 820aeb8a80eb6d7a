"""Compiles all machine code into the cache on disk, so that no test waits for it: ``python -m tests.warm``."""

from typing import Any

from control.loops.compiled_agent import use_machine_code
from control.loops.steps import StepLoop
from envs.make import make_environment
from models.registry import agent_class, default_config
from models.streams import Streams

DISCRETE = [("cartpole", name) for name in ("DDQN", "PPO", "TD3Discrete")]
for game, implementation in [*DISCRETE, ("cliff", "QLearning"), ("pendulum", "SAC"), ("pendulum", "TD3")]:
    config = default_config(implementation, game)
    environment = make_environment(game, 1, config.num_envs, time_limit=1)  # episodes of one step
    agent: Any = agent_class(implementation)(config, environment.spaces, [0])
    loop = StepLoop(agent, environment, Streams([0]))
    use_machine_code(loop)
    loop.machine_code.compile_ahead(loop, environment)
