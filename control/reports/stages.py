"""Sentences about the results of `--learn`: one for each stage, and the conclusion.

The stages are `probe` (random play, constant actions), `teacher` (an agent learns the task), `bandit` (an environment
made from the teacher's policy), `exam` (fresh agents train on it), `reward`, and `race` (fresh agents train with it).
Their results are data of JSON. A score is a dictionary of the fields of `control.reports.verdict.Score`.
"""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from control.reports.search import SOONER
from control.reports.tables import Score, Table, number_text, percent_text, with_margin
from control.reports.tags import GREEDY

PAGE, TEACHER = "page.html", "teacher.ckpt"  # in the folder of `--learn`
_NUM_POLICIES = 4  # number of single policies in `exam_scores`, which precede the agents
GOOD_FRACTION = 0.9  # of the way from random play to the teacher; a clone and the agents of the race should reach it


def stage_texts(name: str, result: Mapping[str, Any]) -> list[str]:
    """Return the ``result`` of the stage ``name`` as texts: the main result and, for most stages, details."""
    if name == "probe":
        random, constant = result["random"], result["constant"]
        constant_text = f"best constant action ({result['action']}) {number_text(constant['mean'])}"
        episodes = f"{random['count']} episodes each"
        returns = f"random play {number_text(random['mean'])}, {constant_text} in {episodes}"
        return [returns, f"{result['steps_per_second']:,.0f} steps/s"]
    if name == "bandit":
        score = result["score"]
        returns = f"its policy returns {number_text(score['mean'])} in {score['count']} new episodes"
        return [returns, f"{percent_text(result['fraction'])} of the way from random play to the teacher"]
    if name == "exam":
        means = [f"{agent} {number_text(score['mean'])}" for agent, score in result["agents"].items()]
        count = next(iter(result["agents"].values()))["count"]
        return [f"{', '.join(means)} (means of {count} agents)"]
    if name == "reward":
        variance = f"explains {percent_text(result['explained_variance'])} of the variance of the teacher's returns"
        return [variance, f"from {result['real_steps']:,} steps"]
    if name == "teacher":
        return _teacher_texts(result)
    return _race_texts(result)


def random_play(results: Mapping[str, Any]) -> Score:
    """Return the score of random play: from the stage `teacher` if it has judged it again, else from `probe`."""
    return Score(**(results.get("teacher", {}).get("random") or results["probe"]["random"]))


def conclusion(results: Mapping[str, Any]) -> list[str]:
    """Return the conclusion from the ``results`` (stage -> its results) as sentences: the verdict of the last stage
    that has one, sentences about the exam, and whether agents of the race learned sooner with the learned reward."""
    verdicts = [result["verdict"]["sentence"] for result in results.values() if "verdict" in result]
    sentences: list[str] = []
    if verdicts:
        sentences = [f"{sentence.removesuffix('.')}." for sentence in verdicts[-1].split(". ")]
    if "exam" in results:
        sentences = [*sentences[:1], *_exam_sentences(results)]  # the second has the mean returns, as `returns_table`
    if race := results.get("race"):
        effect = _race_effect(race)
        effect_text = f"made {race['agent']} agents learn {effect}" if effect else "brought no clear gain"
        sentences.append(f"The learned reward {effect_text}.")
        late = race["arms"]["learned"]["late"]
        if late < random_play(results).mean:
            sentences.append(f"With it, they return {number_text(late)} in the end, less than random play.")
    return [*sentences, *_better_agents(results)]


def _better_agents(results: Mapping[str, Any]) -> list[str]:
    """Return a sentence that names the agents that trained on the task itself, in the exam or the race, and return
    clearly more than the teacher. Empty if there are none."""
    if "teacher" not in results:
        return []
    goal = Score(**results["teacher"]["score"])
    scores = {name: Score(**score) for name, score in results.get("exam", {}).get("real", {}).items()}
    returns = {name: score.mean for name, score in scores.items() if score.exceeds(goal)}
    if race := results.get("race"):
        late = race["arms"]["task"]["late"]  # a mean of many tests
        if late > goal.mean + 2 * goal.error:
            returns[f"{race['agent']} of the race"] = late
    if not returns:
        return []
    names = ", ".join(f"{name} {number_text(mean)}" for name, mean in returns.items())
    line = f"Agents that train on the task itself return more than the teacher, {number_text(goal.mean)}: {names}"
    return [f"{line}. More --teacher_steps or another --teacher, in a new run, would make a better bandit."]


def _exam_sentences(results: Mapping[str, Any]) -> list[str]:
    """Return sentences about the exam: how far agents came on the task itself, and the steps that the bandit cost."""
    exam, sentences = results["exam"], []
    more_steps = exam.get("more_steps", {})  # algorithm -> steps of a longer training; earlier versions have none
    if more_steps:
        longest = max(more_steps.values())
        sentences.append(f"{' and '.join(more_steps)} learned more in {longest:,} steps than in {exam['steps']:,}.")
    cost = sum(results[name].get("real_steps", 0) for name in ("teacher", "bandit"))  # steps of the task
    sentence = f"Teacher and bandit took {cost:,} steps of the task"
    if "real_steps" not in results["teacher"]:  # the steps of a teacher that the user provided are unknown
        sentence = f"Beside the teacher's, the bandit took {cost:,} steps of the task"
    if exam["real"]:
        ways = ", ".join(f"{_way_text(score, results)} ({name})" for name, score in exam["real"].items())
        sentences.append(f"On the task itself, agents come {ways} of the way in {exam['steps']:,} steps.")
        pays_from = cost // exam["steps"] + 1
        sentence += f", so the bandit pays from agent number {pays_from} on if agents take {exam['steps']:,} steps"
        race_steps = results["race"]["arms"]["task"]["median"] if "race" in results else None
        if race_steps is not None and race_steps < exam["steps"]:
            pays_from = int(cost // race_steps) + 1
            sentence += f", from number {pays_from} on if they take {race_steps:,.0f}, the median of the race until a"
            sentence += " first test near the teacher"
    return [*sentences, f"{sentence}.", "The bandit contains the teacher's policy, so agents are hardly better."]


def _way_text(score: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Return how far a score is on the way from random play to the teacher, such as ``97 %``."""
    random_mean, goal = random_play(results).mean, results["teacher"]["score"]["mean"]
    return percent_text((score["mean"] - random_mean) / (goal - random_mean))


def stage_scalars(results: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    """Return points for TensorBoard (tag, mean return, number of steps): the teacher's clones, if there are several,
    over the steps of the task so far, and the mean of all agents that trained on the bandit."""
    points: list[tuple[str, float, int]] = []
    clones = results.get("bandit", {}).get("rounds", [])  # pairs: the steps of the stage so far, and the mean return
    if len(clones) > 1:
        first_step = sum(results[name].get("real_steps", 0) for name in ("probe", "teacher"))
        points += [("learn/clone_return", mean, first_step + steps) for steps, mean in clones]
    if exam := results.get("exam"):
        means = [score["mean"] for score in exam["agents"].values()]
        points.append((GREEDY, sum(means) / len(means), exam["steps"]))
    return points


def race_scalars(results: Mapping[str, Any]) -> dict[str, list[tuple[str, float, int]]]:
    """Return the learning curves of `race` for TensorBoard, by the name of the reward. A point of a curve has the tag,
    the mean or the median return of the agents, and their steps. Empty without a race."""
    race = results.get("race", {"arms": {}})
    points_by_reward: dict[str, list[tuple[str, float, int]]] = {}
    for reward, arm in race["arms"].items():
        points = points_by_reward[reward] = []
        returns_by_test = zip(*arm["curves"], strict=True)  # a curve has the returns of an agent in all tests
        for test, returns in enumerate(returns_by_test, start=1):
            steps = test * race["test_every"]
            points.append(("race/return_mean", statistics.fmean(returns), steps))
            points.append(("race/return_median", statistics.median(returns), steps))
    return points_by_reward


def exam_scores(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the scores by their names in figures and tables: of `_NUM_POLICIES` policies (random play, a constant
    action, the teacher, its clone), then of fresh agents. Requires the results of `exam`."""
    probe, exam = results["probe"], results["exam"]
    scores = {"random play": vars(random_play(results)), f"constant action {probe['action']}": probe["constant"]}
    # The stage `bandit` clones the teacher: its score is of the policy that is best on the bandit.
    scores |= {"teacher": results["teacher"]["score"], "its clone": results["bandit"]["score"]}
    scores |= {f"{name} on the bandit": score for name, score in exam["agents"].items()}
    scores |= {f"{name} on the task": score for name, score in exam["real"].items()}
    return scores


def returns_table(results: Mapping[str, Any]) -> Table:
    """Return the table of `exam_scores`: mean returns, how far they are on the way from random play to the teacher, and
    the number of values in the mean: episodes of a policy, or agents."""
    rows = [["policy", "return ± 2 std. errors", "way to teacher", "mean of"]]
    for number, (name, score) in enumerate(exam_scores(results).items()):
        unit = "episodes" if number < _NUM_POLICIES else "agents"
        mean = with_margin(score["mean"], 2 * score["error"])
        rows.append([name, mean, _way_text(score, results), f"{score['count']} {unit}"])
    return Table(rows, "Returns on the task")


def _teacher_texts(result: Mapping[str, Any]) -> list[str]:
    """Return the result of `teacher`: its return and, unless the user provided it, how it was trained."""
    score = result["score"]
    text = f"{result['policy']} returns {number_text(score['mean'])} in {score['count']} new episodes"
    if "real_steps" not in result:  # a teacher of the user
        return [text]
    end = "which are all" if result["real_steps"] >= result["max_steps"] else "until returns no longer improved"
    training = f"training took {result['real_steps']:,} steps, {end}"
    if result.get("returns"):
        returns = " and ".join(f"{number_text(mean)} with {name}" for name, mean in result["returns"].items())
        training = f"two trainings ({returns}) took {result['real_steps']:,} steps, {end}"
    return [text, f"{training}, and the checkpoint kept is of step {result['best_steps']:,}"]


def _race_effect(race: Mapping[str, Any]) -> str:
    """Return whether the learned reward brought agents of the race near the teacher "sooner", "later", or neither
    ("")."""
    if race["gain"]:
        return "sooner"
    return "later" if is_clearly_sooner(race["arms"], "task", "learned", race["test_every"]) else ""


def is_clearly_sooner(arms: Mapping[str, Any], name: str, other_name: str, test_every: int) -> bool:
    """Return whether agents of the race that train with the reward ``name`` came near the teacher clearly sooner than
    with ``other_name``: by a fifth of the steps (`SOONER`), and by two tests. There is a test every ``test_every``
    steps. ``arms`` are the results by reward. Their ``median`` is a number of steps, None if agents never came near."""
    steps, other_steps = arms[name]["median"] or math.inf, arms[other_name]["median"] or math.inf
    return math.isfinite(steps) and steps <= min(SOONER * other_steps, other_steps - 2 * test_every)


def _race_texts(result: Mapping[str, Any]) -> list[str]:
    """Return the result of `race` with both rewards: steps of the median agent to the goal, and late mean returns."""
    learned, task = result["arms"]["learned"], result["arms"]["task"]
    count, name = result["agents"], result["agent"]
    # At the median, more than half of the agents have come there.
    agents = f"{count // 2 + 1} of {count} {name} agents come" if count > 1 else f"one {name} agent comes"
    goal = f"{100 * GOOD_FRACTION:.0f} % of the way to the teacher ({number_text(result['solved'])})"

    def moment(median: float | None) -> str:
        return f"in no test of {result['steps']:,} steps" if median is None else f"after {median:,.0f} steps"

    moments = f"{moment(learned['median'])} with the learned reward, and {moment(task['median'])} with the task's"
    effect = _race_effect(result)
    effect_text = f"{effect} with the learned reward" if effect else "no clear gain"
    if effect == "later" and learned["median"] is None:
        effect_text = "never with the learned reward"
    if effect and learned["median"] is not None and task["median"] is not None:
        ratio = task["median"] / learned["median"]
        effect_text = f"{max(ratio, 1 / ratio):.1f} times {effect_text}"
    late = f"mean returns in the last quarter: {number_text(learned['late'])} and {number_text(task['late'])}"
    discounts = f"discounts {learned['discount']} and {task['discount']}"
    # Results of earlier versions are all with the default settings.
    settings = "the same settings" if task.get("settings") == "same" else "its default settings"
    return [effect_text, f"{agents} {goal} {moments}, with {settings}; {late} ({discounts})"]
