"""What a search maximises: the fitness of proxies, from what became of the agents that trained on them."""

from torch import Tensor

from control.evolution.inner_loop import Outcome
from models.proxies.search import SearchConfig


def objective(outcome: Outcome, config: SearchConfig) -> Tensor:
    """Fitness ``[N]`` of the proxies that N agents trained on, higher is better; NaN where an agent failed.

    There is one objective, the mean return of an agent's tests on the real environment after its training. Others, by
    the steps that an agent needed or by tests on its way, are further functions of these arguments, between which
    ``config`` is to choose.
    """
    return mean_test_return(outcome, config)


def mean_test_return(outcome: Outcome, config: SearchConfig) -> Tensor:
    return outcome.returns.mean(1)
