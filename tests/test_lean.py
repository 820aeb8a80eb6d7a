"""Lightning without its needless imports: they are gone when it is there, and real for all who ask for more."""

import pytest

from helpers import output_of

LEAN = "import sys; from control.lightning import lean; lean.load(); import pytorch_lightning"


@pytest.mark.slow
def test_lightning_comes_without_them_and_the_real_ones_come_for_whoever_imports_them() -> None:
    code = f"""{LEAN}
absent = ("scipy.signal", "scipy.stats", "torch._dynamo", "torch.export", "sympy", "matplotlib", "matplotlib.pyplot")
print([name for name in absent if name in sys.modules])
import scipy.signal, torch
one = torch.nn.Linear(1, 1)
print(scipy.signal.lfilter([1.0], [1.0], [3.0])[0])
ones = torch.ones(2, 1)
print(torch.compile(one, backend="eager")(ones).shape, torch.export.export(one, (ones,)).graph is not None)
import matplotlib.colors, torchmetrics
mean = torchmetrics.MeanMetric()
mean.update(1.0)
print(float(mean.compute()), matplotlib.colors.to_hex("red"))
"""
    assert output_of(code).splitlines() == [
        "[]", "3.0", "torch.Size([2, 1]) True", "1.0 #ff0000"
    ]  # fmt: skip


@pytest.mark.slow
def test_numba_comes_without_scipy_and_its_products_of_matrices_work() -> None:
    pytest.importorskip("numba")
    code = """
import sys
import numpy as np
from control.lightning import lean
lean.load_numba()
print("scipy.linalg" in sys.modules)
import numba
product = numba.njit(lambda a, b: np.linalg.inv(a) @ b)(2 * np.eye(2), np.ones((2, 2)))
print(product.sum(), type(sys.modules["scipy.linalg"]).__name__)
"""
    assert output_of(code).splitlines() == ["False", "2.0 module"]
