"""The five-minute program runs, verbatim but for the number of epochs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import probneural as pn

PROGRAM = """\
import torch, probneural as pn

burgers = pn.problems.Burgers(viscosity=0.1)                 # exact solution by Cole-Hopf
train = burgers.sample(256, resolution=128, seed=0)          # FieldPairs, float32 by default
calibration = burgers.sample(200, resolution=128, seed=1)
test = burgers.sample(64, resolution=512, seed=2)            # the same law on a finer grid

operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(16,), width=32, depth=4)
history = pn.fit(operator, train, epochs=50, seed=0)         # trains in place; checkpoint=path makes it resume

predict = pn.heads.LastLayerLaplace().fit(operator, train)   # any head: .fit(operator, data) -> Predictor
predict = pn.calibration.VarianceScale().fit(predict, calibration)     # a Predictor again
u = predict(test.inputs)                                     # a FieldDistribution on test's own grid
u.mean, u.variance                                           # (n, c, *grid)
draws = u.rsample(torch.Size([8]))                           # (8, n, c, *grid): coherent functions

total = pn.functionals.integral(test.outputs.grid)           # linear functionals of a field
probe = pn.functionals.sensors(test.outputs.grid, [[0.25], [0.75]])
mass = u.apply(total)                                        # exact Gaussian over the integral
v = u.constrain(total, total(test.outputs.values))           # physics: each field obeys its own conservation law
measured = predict(test.inputs[:4]).condition(probe, probe(test.outputs.values[:4]), noise=1e-8)
w = u.under(measured.latent)                                 # data: what 4 measured fields say about all the others

band = pn.calibration.SimultaneousBand(level=0.9).fit(predict, calibration)
print(pn.metrics.score(u, test.outputs, noise=predict.noise))   # rel. L2, CRPS, NLL, coverage, calibration

def encode(design):                                          # closed unit cube [0, 1]^d -> input functions
    return burgers.encode(design, grid=test.inputs.grid)

model = pn.active.OperatorModel(predict, encode=encode, functional=probe)
model.posterior(torch.rand(4, 2, burgers.design_dim, dtype=torch.double))   # a botorch Model: b x q x d
"""

README = Path(__file__).parents[1] / "README.md"


def programs() -> list[str]:
    """The README's program, if it has one."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [block for block in blocks if "burgers = pn.problems.Burgers" in block]


def normalised(program: str) -> list[str]:
    """Its lines without what a formatter changes: empty ones, and the alignment of comments."""
    return [re.sub(r" +#", "  #", line) for line in program.splitlines() if line]


def test_readme_has_the_program() -> None:
    found = programs()
    if not found:
        pytest.skip("the README does not show the program yet")
    assert normalised(found[0]) == normalised(PROGRAM)


def test_program_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With fewer epochs and without the progress bar; what it leaves behind has the shapes that its comments promise."""
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert PROGRAM.count("epochs=50") == 1
    space: dict[str, object] = {}
    exec(compile(PROGRAM.replace("epochs=50", "epochs=2"), "the five-minute program", "exec"), space)
    check(space)
    assert "coverage" in capsys.readouterr().out


def check(space: dict[str, object]) -> None:
    get: Any = space.__getitem__
    test, u, v, w = get("test"), get("u"), get("v"), get("w")
    assert test.outputs.grid.shape == (512,)
    assert u.mean.shape == u.variance.shape == (64, 1, 512)
    assert u.mean.dtype == torch.float32
    assert bool((u.variance > 0).all())
    assert get("draws").shape == (8, 64, 1, 512)
    assert get("mass").mean.shape == get("mass").variance.shape == (64, 1, 1)
    total = get("total")
    scale = float(test.outputs.norm().max())
    assert float((total(v.mean) - total(test.outputs.values)).abs().max()) <= 1e-5 * scale
    drawn = v.rsample((3,), seed=0)
    assert float((total(drawn) - total(test.outputs.values)).abs().max()) <= 1e-5 * scale
    assert w.mean.shape == (64, 1, 512)
    assert float(w.variance.mean()) < float(u.variance.mean())
    measured = get("measured")
    probe = get("probe")
    assert float((probe(measured.mean) - probe(test.outputs.values[:4])).abs().max()) < 0.1 * scale
    assert isinstance(get("predict"), pn.distributions.Predictor)
    assert get("history").epochs == 2
    band = get("band")(test.inputs)
    assert band.mean.shape == band.half_width.shape == u.mean.shape
    posterior = get("model").posterior(torch.full((4, 2, get("burgers").design_dim), 0.5, dtype=torch.double))
    assert posterior.mean.shape == (4, 2, 2)
    assert posterior.rsample(torch.Size([5])).shape == (5, 4, 2, 2)
