"""Trials of a hyperparameter search that are themselves searches for a proxy, in which agents train. Source: Ferreira
et al. 2022, arXiv 2202.02790. Their score of a trial is the mean number of generations that three searches need to
solve the task."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from control.cli.settings import Settings, to_yaml
from control.commands.train import build_module, fit
from control.commands.trials import METRIC, REACHED, SEARCHES, Reporter, TrialFailed, logged
from control.lightning.callbacks import Progress
from control.lightning.proxy_module import ProxyModule
from control.storage import checkpoints
from control.storage.run_dir import LAST, atomic_write_text
from models.settings import SettingError, UserError, raise_all

REPEATS = 3  # searches per trial, as published


def for_trials(settings: Settings) -> Settings:
    """Return ``settings`` with the defaults of trials that search for a proxy. Raises SettingError if the objective
    lacks a setting that it needs."""
    run, proxy, objective = settings.run, settings.proxy, settings.subcommand.tune_objective
    if proxy is None:
        if objective is not None:
            line = f"tune_objective is {objective!r}, but {run.implementation} trains agents, whose trials"
            raise SettingError(f"{line} are judged by their returns; allowed: null", "tune_objective")
        return settings
    defaults: dict[str, Any] = {"num_seeds": REPEATS, "tune_algorithm": "optuna_asha"}
    changes: dict[str, Any] = {}
    counts_generations = run.implementation == "SE" and None not in (proxy.solved_reward, proxy.generations)
    objective = objective or ("generations" if counts_generations else "score")
    if objective != "score":
        end = "generations" if objective == "generations" else "total_steps"
        missing = [name for name in ("solved_reward", end) if settings.value(name) is None]
        lines = [
            f"tune_objective is {objective!r}, but {name} is null; allowed: a {name}, or score" for name in missing
        ]
        raise_all([SettingError(line, "tune_objective") for line in lines])
        changes["quit_when_solved"] = True
        defaults["eval_every"] = 1  # to end with the generation that solves the task
    changes |= {name: value for name, value in defaults.items() if name not in settings.explicit_names}
    return settings.replace(**changes, tune_objective=objective)


def run_searches(settings: Settings, repeats: int, objective: str, folder: Path, report: Reporter) -> None:
    """Run one search after another, with ``repeats`` seeds. Each has a subfolder of ``folder``, and continues from the
    checkpoint there if there is one. After each search, ``report`` receives the means over all searches so far. Raises
    TrialFailed if a search fails."""
    outcomes: list[Mapping[str, float]] = []
    with logged(folder, settings.run):
        for seed in range(settings.run.seed, settings.run.seed + repeats):
            outcomes.append(_outcome(settings.replace(seed=seed), objective, folder / f"seed_{seed}"))
            means = {name: sum(outcome[name] for outcome in outcomes) / len(outcomes) for name in outcomes[0]}
            report({**means, SEARCHES: len(outcomes)})


def _outcome(settings: Settings, objective: str, folder: Path) -> dict[str, float]:
    """Run a search in ``folder`` and return its measurements. A search that stops with a UserError counts as unsolved:
    its fitness was flat, or its mean diverged."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    with contextlib.closing(build_module(settings)) as module:
        assert isinstance(module, ProxyModule)
        atomic_write_text(folder / "config.yaml", to_yaml(module.settings))
        if (folder / LAST).exists():
            module.restore(checkpoints.load(folder / LAST, resume=True))
        try:
            module.log_all = False
            fit(module, folder, [Progress()])
        except SettingError:
            raise
        except UserError as error:
            print(f"this search ends unsolved: {error}")
        solved_reward, steps = module.config.solved_reward, int(module.env_steps.sum())
        is_solved = solved_reward is not None and module.mean_return >= solved_reward
        if objective == "score":
            score = held_out(module)
        else:
            if objective == "steps":
                spent, budget = steps, settings.total_steps
            else:
                spent, budget = module.epoch, module.config.generations
            assert budget is not None and solved_reward is not None  # ensured by `for_trials`
            score = -until_solved(spent, budget, module.mean_return, solved_reward)
        return {METRIC: score, REACHED: float(is_solved), "epoch": module.epoch, "env_steps": steps}


def until_solved(spent: int, budget: int, mean_return: float, solved_reward: float) -> float:
    """Return the cost of a search in generations or steps. If its ``mean_return`` is at least ``solved_reward``, the
    cost is the number ``spent``. Otherwise it is one to two times the ``budget``, and lower for a higher return:
    ``budget * (2 - 1 / (1 + d))`` with ``d = (solved_reward - mean_return) / max(1, abs(solved_reward))``."""
    if mean_return >= solved_reward:
        return spent
    shortfall = (solved_reward - mean_return) / max(1.0, abs(solved_reward))
    return budget * (2 - 1 / (1 + shortfall))


def held_out(module: ProxyModule) -> float:
    """Return the mean return of fresh agents that train on the best mean of a search. If ``test_every`` is set, it is
    the mean over all tests during training, else over the tests at its end. Diverged agents, whose score is NaN, count
    as the worst of the others. Raises TrialFailed if all diverged."""
    config, count = module.config, module.config.report_agents
    mean = module.mean.detach()[0]
    if module.archive.entries:
        _, _, mean = module.archive.entries[0]  # the best; each is (fitness, generation, mean)
    seeds = module.seeds_of("report", count)
    outcome = module.workers.run(mean.expand(count, -1), seeds, inner_steps=config.steps_in_use)
    scores = outcome.curve.mean(1) if config.test_every else outcome.scores
    finite = scores[scores.isfinite()]
    if not len(finite):
        raise TrialFailed("the weights of all agents that judge the search are no longer finite: a smaller lr may help")
    return float(scores.nan_to_num(nan=float(finite.min())).mean())
