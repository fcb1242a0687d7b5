"""From a folder of mesh files to the interval of an integral, and to ParaView.

Every sample has a mesh of its own. The files come from an exact solution here,
-Δu = f on random domains, and from a solver in general: vtu, vtk, msh, xdmf or med.
"""

from pathlib import Path

import torch

import probneural as pn

FILES = 60
RESOLUTION = 150
EPOCHS = 150
NEW = 20

folder = Path("cases")
folder.mkdir(exist_ok=True)
shapes = pn.problems.PoissonOnShapes(degree=1, terms=1)
solved = shapes.sample(FILES, resolution=RESOLUTION, seed=0)
values = torch.cat([solved.inputs.values, solved.outputs.values], dim=1)
pn.Field(values, solved.inputs.grid, names=("f", "u")).to_meshio(folder / "case_{}.vtu")

data = pn.data.open(str(folder / "case_*.vtu"), inputs=["f"], outputs=["u"], dtype=torch.float32)
print(data.summary)
train, calibration = data.split(2 * FILES // 3, seed=0)

operator = pn.operators.PointFNO(
    in_channels=1, out_channels=1, modes=(4, 4), width=24, depth=3, seed=0
)
pn.fit(operator, train, epochs=EPOCHS, seed=0, show_progress=False)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)
# On held-out samples
predictor = pn.calibration.VarianceScale().fit(predictor, calibration)

new = shapes.sample(NEW, resolution=4 * RESOLUTION, seed=1)  # unseen domains, finer meshes
u = predictor(new.inputs)
total = u.apply(pn.functionals.integral(u.grid)).interval(0.9)
finest = shapes.sample(NEW, resolution=32 * RESOLUTION, seed=1).outputs  # the same functions
exact = pn.functionals.integral(finest.grid)(finest.values)
lower, upper = total
print(f"integral of u: {lower[0].item():.4f} to {upper[0].item():.4f}, exact {exact[0].item():.4f}")
print(f"{total.contains(exact).double().mean():.0%} of {NEW} inside their 90 % interval")

u[0].to_meshio("prediction.vtu", draws=4)  # mean, standard deviation and draws
print("prediction.vtu:", *pn.data.list_variables("prediction.vtu"), sep=" | ")
