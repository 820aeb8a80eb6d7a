"""The end of a search for a proxy (a learned environment or reward): choice and evaluation of the winner, the verdict
about it, and its files. Also a test before the search, with agents that train without a proxy.

A search is an evolution strategy. Its archive keeps the means of its distribution with the best fitness. Their fitness
is a selected maximum, so it is too high. Therefore these means are re-evaluated with new agents, which choose one mean,
the winner. Its score is from a held-out evaluation with further agents.
"""

import dataclasses
import importlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from control.cli.colour import paint, verdict_text
from control.cli.options import command_line
from control.cli.progress import Watch, progress, watch_part
from control.cli.settings import Settings, effective_values
from control.evolution.inner_loop import InnerLoop, Outcome, implementation_means
from control.evolution.objectives import average, objective, stays_solved
from control.evolution.teachers import is_teacher, teacher
from control.films.recording import Actor, record, returns_text
from control.lightning.module import RunModule
from control.lightning.proxy_module import ProxyModule, RewardNetworkModule
from control.lightning.supervised import SupervisedModule
from control.reports.figures import style_of
from control.reports.plot import learning_curve
from control.reports.search import describe, iqm_text, reward_comparison, speed_text
from control.reports.tables import Score, solved_verdict
from control.reports.tags import GREEDY
from control.reports.verdict import SCORES, Baselines, Verdict
from control.storage import run_dir
from envs.make import spaces_of
from models.proxies import files
from models.proxies.search import CLONES
from models.registry import family
from models.settings import UserError, names_with
from models.spaces import Spaces
from models.streams import Streams
from understudy.files import PROXY_FILE

_REAL_AGENTS = 4  # number of agents that train on the real environment before a search
# Number of agents of each candidate in a round of the re-evaluation. Weak candidates are left out of the next round.
_ROUND_AGENTS = 8


def finish_search(module: ProxyModule, folder: Path) -> Iterator[tuple[str, object]]:
    """Finish a search for a proxy, or a supervised fit of one, in its run ``folder``: draw the learning curve, choose
    and evaluate the winner, save it with its verdict as ``proxy.safetensors``, and draw it. If interrupted, only draw
    the curve. Yields ``(name, value)`` for each line of the summary. Raises UserError if all agents diverged."""
    announce(module, "drawing the learning curve")
    yield from draw_curve(module, folder)
    if not module.is_over():
        return
    search_steps = module.real_steps
    fit = module.fitted_to() if isinstance(module, SupervisedModule) else {}  # data of the fit; empty for a search
    is_clone = getattr(module.config, "preset", "") in CLONES
    retests: list[dict[str, Any]] = []  # results of the re-evaluated means
    if fit or is_clone:  # there is only one mean, so there is nothing to choose
        generation, winner = 0, module.mean.detach()[0]
    else:
        generation, winner, retests = _reevaluate(module)
    outcome, summary = _evaluate_winner(module, winner)
    all_agents_diverged = summary["failed"] == summary["agents"]
    all_means_diverged = bool(retests) and not any(math.isfinite(retest["again"]) for retest in retests)
    if all_agents_diverged or all_means_diverged:
        problem = "the weights of all agents that judge the means are no longer finite, so the search has no winner"
        raise UserError(f"{problem}; metrics and checkpoint are kept in {str(folder)!r}: a smaller lr may help")
    scores: dict[str, Any]
    if fit:
        scores = {"fit": fit, "report": summary}
        origin = f"fitted to {fit['transitions']:,} transitions"
    else:
        scores = {
            "generation": generation,
            "generations": module.epoch,
            "report": summary,
            "second_test": retests,
            "search_synthetic_steps": int(module.env_steps.sum()),
            "search_real_steps": module.real_steps,
        }
        origin = f"made from {module.config.start_from}" if is_clone else f"mean of generation {generation}"
        if generation > module.epoch:  # the last generation moves the mean once more
            origin = "last mean"
    announce(module, "playing at random and with constant actions on the real environment")
    verdict = _verdict(module, outcome)
    scores["verdict"] = verdict.as_dict()
    write_proxy(folder / PROXY_FILE, winner, module.settings, module.factory.spaces, scores)
    run_dir.atomic_write_text(folder / SCORES, json.dumps(scores, indent=1) + "\n")
    yield "proxy", f"{PROXY_FILE} ({origin})"
    yield "verdict", verdict_text(verdict.sentence, verdict.passed)
    score_lines = dict(_score_lines(module, summary))
    yield from score_lines.items()
    if not fit:
        tests_after = module.real_steps - search_steps
        yield "real steps", f"{search_steps:,}, and {tests_after:,} in the tests after the search"
    for board in module.boards:
        # The tag and the training steps are as for other agents, so that the point is in their chart.
        board.add_scalars({GREEDY: summary["mean"]}, module.config.steps_in_use)
    module.show_text("conclusion", f"- **verdict**: {verdict.sentence}\n- **score**: {score_lines['score']}")
    if module.settings.run.record:
        announce(module, "filming an agent that trains on the winner")
        video = folder / "videos" / "final.mp4"
        yield "video", _film_winner(module, winner, video)
        module.show_image("film", video.with_suffix(".gif"))
    yield "picture", _draw_winner(module, folder)


def _evaluate_winner(module: ProxyModule, winner: Tensor) -> tuple[Outcome, dict[str, Any]]:
    """Train fresh agents on the winner, a proxy with D parameters ``[D]``, and test them. Return their results, and
    statistics of them (`describe`). With several implementations, ``by_implementation`` has their mean returns."""
    seeds = module.seeds_of("report", module.config.report_agents)
    announce(module, f"held-out evaluation of the winner with {len(seeds)} fresh agents")
    with progress("agents trained and tested", module.verbose) as watch:
        outcome = _train_and_test(module, winner[None], seeds, watch)  # [1, D]: one proxy
    summary = describe(outcome, module.config)
    if module.num_implementations > 1:
        summary["by_implementation"] = implementation_means(module.agents, seeds, outcome.scores)
    return outcome, summary


def _draw_winner(module: ProxyModule, folder: Path) -> Path:
    """Draw the winner in ``folder``: the states and rewards of a synthetic environment, or the output of a reward
    network. Add the pictures to TensorBoard, and return the path of the first picture."""
    announce(module, "drawing what the winner shows agents")
    kind_of_proxy = family(module.settings.run.implementation).package.rpartition(".")[2]  # "reward" or "synthetic"
    drawing_module = importlib.import_module(f"control.reports.{kind_of_proxy}")
    picture: Path = drawing_module.picture(files.load(folder / PROXY_FILE), folder, module.settings)
    for file in (picture, picture.with_stem("behaviour_reward")):  # the second file exists for bandits
        module.show_image(f"winner/{file.stem}", file)
    return picture


def draw_curve(module: RunModule, folder: Path) -> Iterator[tuple[str, Path]]:
    """Draw the learning curve of a run or search and add it to TensorBoard. Yield ``("figure", path)``, a line for the
    summary, unless there is nothing to draw."""
    path = learning_curve(folder, style_of(module.settings.run))
    if path:
        module.show_image("summary/curve", path)
        yield "figure", path


def _verdict(module: ProxyModule, outcome: Outcome) -> Verdict:
    """Return the verdict about the winner, from the results ``outcome`` of its fresh agents. They are compared with
    random play, constant actions and, if the winner was made from a teacher's policy, this teacher; if the winner is a
    reward, also with agents that train with the task's reward. The comparisons do not count as steps of the search."""
    run, config = module.settings.run, module.config
    teacher_policy = None
    if config.start_from is not None and is_teacher(config.start_from):
        teacher_policy = teacher(config.start_from, run.gamename, module.factory.spaces)
    baselines = Baselines.measure(run.gamename, run.seed, config.test_limit, teacher_policy)
    goal = config.solved_reward
    if goal is None:
        goal = spaces_of(run.gamename, config.test_limit).max_return
    comparison = ""
    has_budget_of_steps = config.inner_rule == "budget" and config.train_episodes is None
    if isinstance(module, RewardNetworkModule) and has_budget_of_steps:
        seeds = module.seeds_of("report", config.report_agents)  # the seeds of `_evaluate_winner`
        announce(module, f"{len(seeds)} agents with the task's reward, to compare")
        with progress("agents trained and tested", module.verbose) as watch:
            task_outcome = module.workers.run(None, seeds, watch=watch, inner_steps=config.steps_in_use)
        comparison = reward_comparison(outcome, task_outcome, config)
    return baselines.judge(
        outcome.scores.numpy(),
        goal=goal,
        solved_reward=config.solved_reward,
        progress=_fitness_progress(module, outcome, goal),
        advice=family(run.implementation).advice(config),
        comparison=comparison,
    )


def _fitness_progress(module: ProxyModule, outcome: Outcome, goal: float | None) -> tuple[Score, Score] | None:
    """Return the fitness at the start of the search (of its first mean), and of the winner, whose agents have the
    results ``outcome``. The verdict requires that the winner's is higher. Return None if the search did not begin at
    random, if the two cannot be compared, or if the winner cannot be better because its agents reach ``goal``."""
    config = module.config
    first_config = config.generation_settings(1)  # settings of the first generation
    began_at_random = module.epoch > 1 and config.start_from is None
    is_comparable = first_config.scored_by == "agents" and first_config.test_limit == config.test_limit
    if not began_at_random or not is_comparable or not module.first_scores.isfinite().any():
        return None
    reaches_goal = goal is not None and float(outcome.scores.nanmean()) >= goal
    if reaches_goal and config.objective == "final":  # other objectives also reward speed
        return None
    # The fitness is from as many tests as in the search, although the agents of the evaluation may train longer.
    num_tests = config.inner_steps // config.test_every if config.test_every else 1
    shortened = dataclasses.replace(outcome, curve=outcome.curve[:, :num_tests])
    return Score.of(module.first_scores.numpy()), Score.of(objective(shortened, config).numpy())


def real_agents_text(module: ProxyModule) -> str:
    """Train agents for ``inner_steps`` steps on the real environment, to see whether they can learn in this time.
    Return a line of text that compares their returns with random play. If they are no better, it also has advice."""
    run, config = module.settings.run, module.config
    # Rounded up to a multiple of the number of implementations, so that all implementations have equally many agents.
    count = math.ceil(_REAL_AGENTS / module.num_implementations) * module.num_implementations
    seeds = module.seeds_of("plain agents", count)
    with progress(f"{count} agents on the real environment") as watch:
        outcome = module.workers.run(None, seeds, watch=watch, test_every=None)
    plain = Score.of(outcome.scores.numpy())
    random = Baselines.measure(run.gamename, run.seed, config.test_limit).random
    text = f"{run.agent} after {float(outcome.steps.double().mean()):,.0f} real steps: {plain}, random play {random}"
    problem = plain.failure_to_exceed(random, "agents are", "random play")
    if not problem:
        return text
    is_reward = isinstance(module, RewardNetworkModule)
    advice = "; try more --inner_steps" if is_reward else ", but may be on a synthetic environment"
    return f"{text}: {problem} after inner_steps{advice}"


def write_proxy(
    path: Path, parameters: Tensor, settings: Settings, spaces: Spaces, scores: Mapping[str, Any], text: str = ""
) -> None:
    """Write a proxy with D parameters ``[D]`` to ``path``. The description in the file has the ``settings`` that affect
    results, the ``scores``, and the command that makes the proxy: ``text``, or by default the command of a run with
    these settings. ``spaces`` are the observation and action spaces of the real environment."""
    # Names of settings that do not affect results.
    omitted = {name for config in settings.configs for name in names_with(config, "outcome", False)}
    description = {
        "command": text or command_line(settings, omitted),
        "settings": {name: value for name, value in effective_values(settings).items() if name not in omitted},
        "scores": dict(scores),
    }
    game = settings.run.gamename
    files.save(path, parameters, config=settings.proxy, spaces=spaces, game=game, description=description)


def _score_lines(module: ProxyModule, summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield ``(name, text)`` for each line of the printed summary about the agents of the held-out evaluation.
    ``summary`` has their statistics (`describe`)."""
    score = f"mean {summary['mean']:.1f}, IQM {iqm_text(summary)}"
    solved = module.config.solved_reward
    if solved is not None:
        score = f"{solved_verdict(summary['mean'], solved)}: {score}"
    diverged = f"; {summary['failed']} of them diverged and count in nothing" if summary["failed"] else ""
    place = "in machine code" if module.settings.proxy.compiled else "in torch"
    yield "score", f"{score} of {summary['agents']} fresh agents, trained {place}{diverged}"
    if "by_implementation" in summary:
        means = [f"{implementation} {mean:.1f}" for implementation, mean in summary["by_implementation"].items()]
        yield "of each", ", ".join(means)
    if "stays" in summary:
        yield "speed", speed_text(summary)


def _film_winner(module: ProxyModule, winner: Tensor, path: Path) -> str:
    """Train another agent on the winner, a proxy ``[D]``, and film it in the real environment as ``path``. Return text
    for the summary: the file and the returns, or the reason why there is no film."""
    settings, game = module.settings, module.settings.run.gamename
    config = dataclasses.replace(module.config, inner_steps=module.config.steps_in_use)
    loop = InnerLoop(config, settings.run.agent, settings.agent, game, settings.run.num_threads)
    loop = loop.for_implementation(loop.implementations[0])
    with progress("trained", module.verbose) as watch:
        training = loop.begin(winner[None], module.seeds_of("video", 1))  # [1, D]: one proxy for one agent
        trained = loop.train_to_end(training, watch=watch)
    seeds = Streams.from_name(module.seeds, "video").episode_seeds(settings.run.record_episodes)[0].tolist()
    try:
        with progress("filming", module.verbose) as watch:
            (returns,) = record([Actor(lambda: trained.policy)], game, path, seeds, with_gif=True, watch=watch)
    except UserError as error:
        return f"none: {error}"
    return f"videos/{path.name}, .gif (an agent trained on the proxy, in the real environment: {returns_text(returns)})"


def _reevaluate(module: ProxyModule) -> tuple[int, Tensor, list[dict[str, Any]]]:
    """Evaluate the best proxies of a search, means of its evolution strategy, again with new agents, and choose the
    winner. The candidates are the means in the archive and, unless the search ended because it solved the task, the
    last mean. Only a candidate that was evaluated with all ``retest_agents`` agents can win.

    Return the winner's ``generation``, the winner ``[D]``, and a dictionary about each candidate: its ``generation``,
    its fitness ``in_search`` (None for the last mean), its new score ``again``, and the number of new ``agents``.
    """
    means = [entry.mean for entry in module.archive.entries]  # [D] each
    retests: list[dict[str, Any]] = [
        {"generation": entry.generation, "in_search": entry.fitness} for entry in module.archive.entries
    ]
    if not module.has_solved():
        # The last mean has no fitness yet. It has the number of the next generation.
        generation = module.epoch + 1
        means.append(module.with_visited_states(module.proxies(module.evolution.mean), generation))
        retests.append({"generation": generation, "in_search": None})
    count = module.config.retest_agents
    announce(module, f"second test of the {len(means)} best networks, {count} new agents each")
    candidates = torch.stack(means)  # [N, D]
    with progress("agents trained and tested", module.verbose) as watch:
        if module.config.choose_by == "stays":
            scores, agent_counts = _solved_fractions(module, candidates, watch)
        else:
            scores, agent_counts = _mean_returns(module, candidates, watch)
    for retest, score, num_agents in zip(retests, scores.tolist(), agent_counts, strict=True):
        retest |= {"again": score, "agents": num_agents}
    has_all_agents = torch.tensor([num_agents == count for num_agents in agent_counts])
    best = int(scores.where(has_all_agents, -torch.inf).argmax())  # the first of several equal scores
    return retests[best]["generation"], candidates[best], retests


def _solved_fractions(module: ProxyModule, candidates: Tensor, watch: Watch | None) -> tuple[Tensor, list[int]]:
    """Score N proxies, ``candidates [N, D]``, by the fraction of their agents that solve the task for good: all tests
    in the second half of their training. Of candidates with equal fractions, the one with the higher mean return in the
    tests gets a slightly higher score. Return the scores ``[N]``, and the number of agents of each candidate."""
    assert module.config.solved_reward is not None
    count = module.config.retest_agents
    seeds = module.seeds_of("second test", count)
    outcome = _train_and_test(module, candidates, seeds, watch, sample_all=module.config.retest_drawn)
    shape = (len(candidates), count)  # an outcome has a row for each agent of each candidate
    fractions = stays_solved(outcome.curve, module.config.solved_reward).view(shape).float().mean(1)  # [N]
    mean_returns = average(outcome, module.config).view(shape).nan_to_num(-torch.inf).mean(1)  # [N]
    ranks = mean_returns.argsort().argsort()  # 0 is the lowest
    scores = fractions + ranks / (len(candidates) * count)  # a rank weighs less than one agent, so it only breaks ties
    return scores, [count] * len(candidates)


def _mean_returns(module: ProxyModule, candidates: Tensor, watch: Watch | None) -> tuple[Tensor, list[int]]:
    """Score N proxies, ``candidates [N, D]``, by the mean return of agents that train on them. Return the scores
    ``[N]`` (``-inf`` if an agent diverged), and the number of agents of each candidate, at most ``retest_agents``.

    In torch, a single large batch with all agents is fastest. In machine code, all agents of the first candidate train
    first. Then agents of the other candidates train in rounds of `_ROUND_AGENTS`. A candidate is left out of further
    rounds if it can no longer exceed the first candidate, even if all further agents reached the largest return.
    """
    count = module.config.retest_agents
    seeds = module.seeds_of("second test", count)
    sample_all = module.config.retest_drawn  # whether agents have random hyperparameters
    max_return = spaces_of(module.settings.run.gamename, module.config.test_limit).max_return
    if max_return is None or not module.settings.proxy.compiled:
        outcome = _train_and_test(module, candidates, seeds, watch, sample_all)
        returns = outcome.scores.view(-1, count).nan_to_num(-torch.inf)  # [N, agents], -inf if an agent diverged
        return torch.stack([row.mean() for row in returns]), [count] * len(candidates)
    returns = torch.full((len(candidates), count), torch.nan)  # NaN for agents that do not train
    outcome = _train_and_test(module, candidates[:1], seeds, watch_part(watch, 0, 1 / len(candidates)), sample_all)
    returns[0] = outcome.scores.nan_to_num(-torch.inf)
    agents_done = count
    rivals = list(range(1, len(candidates)))  # indices of candidates that can still exceed the first candidate
    for first in range(0, count, _ROUND_AGENTS):
        if not rivals:
            break
        end = min(first + _ROUND_AGENTS, count)
        round_agents = len(rivals) * (end - first)
        most_agents = agents_done + len(rivals) * (count - first)  # number of agents if no further rival is left out
        watch_round = watch_part(watch, agents_done / most_agents, round_agents / most_agents)
        outcome = _train_and_test(module, candidates[rivals], seeds[first:end], watch_round, sample_all)
        returns[rivals, first:end] = outcome.scores.view(len(rivals), -1).nan_to_num(-torch.inf)
        agents_done += round_agents
        highest_sums = returns[:, :end].sum(1) + (count - end) * max_return  # if all further agents reach the maximum
        rivals = [index for index in rivals if highest_sums[index] > returns[0].sum()]
    agent_counts = (~returns.isnan()).sum(1).tolist()
    mean_returns = [row[:num_agents].mean() for row, num_agents in zip(returns, agent_counts, strict=True)]
    return torch.stack(mean_returns), agent_counts


def _train_and_test(
    module: ProxyModule, proxies: Tensor, seeds: list[int], watch: Watch | None, sample_all: bool = False
) -> Outcome:
    """Train an agent with each of the ``seeds`` on each of N proxies ``[N, D]``, for ``steps_in_use`` steps, and test
    it on the real environment. The outcome has the results of the first proxy's agents, then of the second proxy's, and
    so on. If ``sample_all``, agents have random hyperparameters."""
    agent_proxies = proxies.repeat_interleave(len(seeds), 0)  # a row for each agent
    agent_seeds = seeds * len(proxies)
    steps = module.config.steps_in_use
    outcome = module.workers.run(agent_proxies, agent_seeds, sample_all=sample_all, watch=watch, inner_steps=steps)
    module.count_real_steps(outcome.test_steps)  # not in checkpoints, because a resumed search is evaluated again
    return outcome


def announce(module: RunModule, text: str) -> None:
    """Print ``text``, the next step of the command, unless the module prints only warnings."""
    if module.verbose:
        print(paint(text, "dim", sys.stdout), flush=True)
