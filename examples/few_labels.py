"""Train with an equation: 15 solutions and 400 inputs without solutions of Helmholtz' equation.

The residual of the equation trains on all inputs. At the end, one Gauss-Newton step on the residual
corrects the predictions, and calibration makes their intervals hold.
"""

import matplotlib.pyplot as plt

import probneural as pn
from probneural.physics import Dirichlet, Residual, equations

LABELS, INPUTS, HELD_OUT, TEST, EPOCHS, WIDTH = 15, 400, 60, 100, 15, 24

problem = pn.problems.Helmholtz(8.0)  # -Δu - 64 u = f, and u = 0 on the walls of the unit square
labelled, more, held_out, test = (
    problem.sample(n, resolution=33, seed=seed)
    for seed, n in enumerate((LABELS, INPUTS, HELD_OUT, TEST))
)
unlabelled = pn.FieldPairs.unlabelled(more.inputs)
residual = Residual(equations.Helmholtz(8.0), boundary=Dirichlet(0.0))


def build():
    return pn.operators.FNO(
        1,
        1,
        modes=(10, 10),
        width=WIDTH,
        periodic=False,
        continuation="alternating",
        embeds_position=True,
        seed=0,
    )


def report(name, predictor):
    u = predictor(test.inputs)
    size = pn.metrics.residual(u, residual, inputs=test.inputs, draws=0).mean.mean()
    scores = pn.metrics.score(u, test.outputs, noise=predictor.noise)
    print(
        f"{name:24} error {scores.relative_l2:.3f}, residual {size:6.2f}, "
        f"coverage at 90 % {scores.coverage:.2f}"
    )
    return u


data_alone = build()
pn.fit(data_alone, labelled, epochs=EPOCHS * 10, seed=0)
with_equation = build()
pn.fit(with_equation, [labelled, unlabelled], loss=residual.loss(), epochs=EPOCHS, seed=0)

head = pn.heads.LastLayerLaplace()
report("data alone", head.fit(data_alone, labelled))
predictor = head.fit(with_equation, labelled)
report("with the equation", predictor)
predictor = pn.calibration.calibrate(residual.corrected(predictor, steps=1), held_out, seed=0)
u = report("corrected, calibrated", predictor)

figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
error = (u.mean - test.outputs.values).abs()
for axis, (title, values) in zip(
    axes,
    {"solution": test.outputs.values, "error": error, "standard deviation": u.std}.items(),
    strict=True,
):
    image = axis.imshow(values[0, 0].T, origin="lower", extent=(0, 1, 0, 1))
    axis.set_title(title)
    figure.colorbar(image, ax=axis)
figure.savefig("few_labels.png", dpi=150)
