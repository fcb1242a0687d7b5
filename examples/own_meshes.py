"""From a folder of mesh files to the interval of an integral, and to ParaView.

Every sample has a mesh of its own. The files come from an exact solution here,
-Δu = f on random domains, and from a solver in general: vtu, vtk, msh, xdmf or med.
"""

import math
from pathlib import Path

import torch

import probneural as pn

FILES = 120
TRAINING = 40
RESOLUTION = 150
EPOCHS = 150
NEW = 200

folder = Path("cases")
folder.mkdir(exist_ok=True)
shapes = pn.problems.PoissonOnShapes(degree=1, terms=1)
solved = shapes.sample(FILES, resolution=RESOLUTION, seed=0)
values = torch.cat([solved.inputs.values, solved.outputs.values], dim=1)
pn.Field(values, solved.inputs.grid, names=("f", "u")).to_meshio(folder / "case_{}.vtu")

data = pn.data.open(str(folder / "case_*.vtu"), inputs=["f"], outputs=["u"], dtype=torch.float32)
print(data.summary)
train, held_out = data.split(TRAINING, seed=0)
scaling, conformal = held_out.split(TRAINING, seed=0)

operator = pn.operators.PointFNO(
    in_channels=1, out_channels=1, modes=(4, 4), width=24, depth=3, seed=0
)
pn.fit(operator, train, epochs=EPOCHS, seed=0, show_progress=False)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.VarianceScale().fit(predictor, scaling)


def integral(inputs):
    u = predictor(inputs)
    return u.apply(pn.functionals.integral(u.grid))


# Split conformal intervals: half-widths in standard deviations, from integrals over other meshes
pairs = conformal[:]  # in memory
forecast = integral(pairs.inputs)
truth = pn.functionals.integral(pairs.outputs.grid)(pairs.outputs.values)
ratios = ((truth - forecast.mean) / forecast.std).abs().flatten().sort().values
factor = ratios[min(len(ratios), math.ceil(0.9 * (len(ratios) + 1))) - 1]

new = shapes.sample(NEW, resolution=4 * RESOLUTION, seed=1)  # unseen domains, finer meshes
total = integral(new.inputs)
finest = shapes.sample(NEW, resolution=32 * RESOLUTION, seed=1).outputs  # the same functions
exact = pn.functionals.integral(finest.grid)(finest.values)
middle, half = total.mean[0].item(), (factor * total.std[0]).item()
print(f"integral of u: {middle:.4f} +- {half:.4f}, exact {exact[0].item():.4f}")
within = total.interval(0.9).contains(exact).double().mean()
print(f"{within:.0%} of {NEW} inside the 90 % interval of the posterior")
inside = (exact - total.mean).abs() <= factor * total.std
print(f"{inside.double().mean():.0%} inside {factor:.1f} standard deviations")

predictor(new.inputs[0]).to_meshio("prediction.vtu", draws=4)  # mean, standard deviation and draws
print("prediction.vtu:", *pn.data.list_variables("prediction.vtu"), sep=" | ")
