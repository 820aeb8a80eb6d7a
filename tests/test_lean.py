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
from lightning_fabric.wrappers import OptimizedModule
from pytorch_lightning.utilities.compile import OptimizedModule as also
one = torch.nn.Linear(1, 1)
other = torch.compile(one)
print([isinstance(each, kind) for each in (one, other) for kind in (OptimizedModule, also)])
print(scipy.signal.lfilter([1.0], [1.0], [3.0])[0], torch._dynamo.__spec__ is None)
ones = torch.ones(2, 1)
print(torch.compile(one, backend="eager")(ones).shape, torch.export.export(one, (ones,)).graph is not None)
import matplotlib.colors, torchmetrics
mean = torchmetrics.MeanMetric()
mean.update(1.0)
print(mean.plot()[0].axes[0].get_ylabel(), matplotlib.colors.to_hex("red"))
"""
    assert output_of(code).splitlines() == [
        "[]", "[False, False, True, True]", "3.0 False", "torch.Size([2, 1]) True", "MeanMetric #ff0000"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scipy.signal", "torch._dynamo", "torch.export"])
def test_whoever_asks_for_more_meanwhile_gets_the_real_one_and_what_is_there_already_stays(name: str) -> None:
    asked = {"scipy.signal": "lfilter", "torch._dynamo": "explain", "torch.export": "export"}
    code = f"""
import importlib, sys
from control.lightning import lean
with lean._stubbed(lean._STUBS):
    early = importlib.import_module({name!r})
    first = type(early).__name__
    early.__dict__.get("nothing"), getattr(early, {asked[name]!r})
before = sys.modules[{name!r}]
{LEAN}
print(first, type(before).__name__, sys.modules[{name!r}] is before)
"""
    assert output_of(code) == "_LazyModule module True\n"


@pytest.mark.slow
def test_submodules_of_stubs_import_as_torchvision_does() -> None:
    code = """
import sys
from control.lightning import lean
with lean._stubbed(lean._STUBS):
    from torch._dynamo.utils import is_compile_supported
compiler = sys.modules["torch._dynamo"]
print(compiler.utils.is_compile_supported is is_compile_supported, compiler.utils.__spec__.loader.__class__.__name__)
"""
    assert output_of(code) == "True SourceFileLoader\n"


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
