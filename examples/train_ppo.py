"""Train PPO on CartPole and evaluate it. From the root of a checkout: python -m examples.train_ppo"""

import trainer


def main(total_steps: int = 50_000, logdir: str = "exp_dir") -> str:
    """Return the folder of the run, for the other examples."""
    run = trainer.train(
        implementation="PPO", gamename="cartpole", total_steps=total_steps, exp_name="example", logdir=logdir
    )
    print(f"steps: {run.metrics['env_steps'][-1]:,.0f}, greedy return: {run.evaluate(episodes=20).mean:.1f}")
    return str(run.folder)


if __name__ == "__main__":
    main()
