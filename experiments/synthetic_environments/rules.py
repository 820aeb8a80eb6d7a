"""Hand-written controllers: functions of observations ``[N, S]``. Searches for bandits can start from them.

    python trainer.py --implementation SE --gamename cartpole --proxy bandit --preset clone \\
        --start_from experiments.synthetic_environments.rules:balance

Run as a script, the file prints the return of each controller in 100 ``--episodes`` of the real environment. With
``--search`` it prints the number of steps until a random search finds a linear controller that solves CartPole.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

Array = np.ndarray[Any, Any]

_NUM_RANDOM = 20  # random controllers; `crude` is the best


def linear(weights: Array, obs: Array) -> Array:
    """Push right if the weighted sum of an observation is positive."""
    return (obs @ weights > 0).astype(int)


def balance(obs: Array) -> Array:
    """CartPole: a linear controller that balances the pole indefinitely."""
    return linear(np.array([0.5, 1.0, 10.0, 2.0]), obs)


def lqr(obs: Array) -> Array:
    """CartPole: the sign of the linear-quadratic regulator near upright, with unit costs."""
    return (-obs @ _gain() > 0).astype(int)


@functools.cache
def _gain() -> Array:
    """Return the gain ``[4]`` of `lqr`, from the Riccati equation of CartPole linearised near upright."""
    with gymnasium.make("CartPole-v1") as env:
        cartpole: Any = env.unwrapped
    cart, pole, half, step = cartpole.masscart, cartpole.masspole, cartpole.length, cartpole.tau
    turned = half * (4 / 3 - pole / (cart + pole))  # angular acceleration is (g sin - cos * force / mass) / turned
    push = 1 / (cart + pole)
    drift, control = np.eye(4), np.zeros((4, 1))
    drift[0, 1] = drift[2, 3] = step
    drift[3, 2] = step * cartpole.gravity / turned
    drift[1, 2] = -step * pole * half * push * cartpole.gravity / turned
    control[3, 0] = -step * push / turned
    control[1, 0] = step * (push + pole * half * push * push / turned)
    cost = np.eye(4)
    for _ in range(2000):
        gain = np.linalg.solve(1 + control.T @ cost @ control, control.T @ cost @ drift)
        cost = np.eye(4) + drift.T @ cost @ (drift - control @ gain)
    return np.asarray(gain[0])


def crude(obs: Array) -> Array:
    """CartPole: the linear controller with the longest episode among 20 random ones."""
    return linear(_crude_weights(), obs)


@functools.cache
def _crude_weights() -> Array:
    """Return the weights ``[4]`` of `crude`."""
    weights = np.random.default_rng(0).normal(size=(_NUM_RANDOM, 4))
    with gymnasium.make("CartPole-v1") as env:
        lengths = [episode_return(env, functools.partial(linear, row), 0) for row in weights]
    return np.asarray(weights[int(np.argmax(lengths))])


def swing(obs: Array) -> Array:
    """Acrobot: accelerate the second link in its direction of rotation."""
    return np.where(obs[:, 5] > 0, 2, 0)


def rock(obs: Array) -> Array:
    """MountainCarContinuous: push in the direction of the velocity."""
    return np.sign(obs[:, 1:]) * np.ones((1, 1))


def hold(obs: Array) -> Array:
    """Pendulum: pump energy until the pendulum is near upright, then balance it."""
    angle, speed = np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2]
    missing = 5 * (1 - obs[:, 0]) - speed**2 / 6
    pumped = 3 * np.sign(speed + 1e-9) * missing
    balance_torque = -(12 * angle + 3 * speed)
    return np.clip(np.where(np.abs(angle) < 0.6, balance_torque, pumped), -2, 2)[:, None]


RULES = {
    balance: "CartPole-v1",
    lqr: "CartPole-v1",
    crude: "CartPole-v1",
    swing: "Acrobot-v1",
    rock: "MountainCarContinuous-v0",
    hold: "Pendulum-v1",
}


def episode_return(env: Any, rule: Callable[[Array], Array], seed: int) -> float:
    """Play an episode of a controller, which maps observations ``[1, S]`` to actions ``[1]``. Return its return."""
    obs, _ = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(rule(obs[None])[0])
        total, done = total + float(reward), terminated or truncated
    return total


def random_search(seed: int) -> tuple[int, int, Callable[[Array], Array]]:
    """Sample linear controllers of CartPole until one survives a full episode, then 475 steps on average in 20 more.

    Return the number of samples, the real steps of all episodes, and the controller.
    """
    generator, num_samples, steps = np.random.default_rng(seed), 0, 0
    env = gymnasium.make("CartPole-v1")
    while True:
        rule = functools.partial(linear, generator.normal(size=4))
        num_samples += 1
        first_length = episode_return(env, rule, 10_000 * seed + num_samples)
        steps += int(first_length)
        if first_length < 500:
            continue
        lengths = [episode_return(env, rule, 5000 + episode) for episode in range(20)]
        steps += int(sum(lengths))
        if np.mean(lengths) >= 475:
            return num_samples, steps, rule


def main() -> None:
    flags = argparse.ArgumentParser(description="What controllers by hand make of real environments")
    flags.add_argument("--episodes", type=int, default=100, help="of each controller")
    flags.add_argument("--search", type=int, default=0, metavar="N", help="random searches, seeds 0 to N - 1, instead")
    options = flags.parse_args()
    for seed in range(options.search):
        start = time.process_time()
        num_samples, steps, rule = random_search(seed)
        seconds = time.process_time() - start
        with gymnasium.make("CartPole-v1") as env:
            mean = np.mean([episode_return(env, rule, 1000 + episode) for episode in range(100)])
        cost = f"{num_samples} controllers, {steps} steps, {seconds:.2f} CPU seconds"
        print(f"seed {seed}: {cost}; then mean {mean:.1f} of 500")
    if options.search:
        return
    if options.episodes < 1:
        flags.exit(2, f"error: episodes is {options.episodes}; allowed: integer, at least 1\n")
    for rule, name in RULES.items():
        with gymnasium.make(name) as env:
            returns = [episode_return(env, rule, 1000 + episode) for episode in range(options.episodes)]
        print(f"{rule.__name__:<8} {name:<25} mean {np.mean(returns):7.1f}, lowest {min(returns):7.1f}")


if __name__ == "__main__":
    main()
