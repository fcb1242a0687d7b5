"""Export a calibrated predictor to an ONNX file, and run it with NumPy and ONNX Runtime alone."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
from matplotlib.figure import Figure

import probneural as pn

FUNCTIONS, WIDTH, DEPTH, EPOCHS = 256, 32, 4, 50

burgers = pn.problems.Burgers(viscosity=0.1)
train = burgers.sample(FUNCTIONS, resolution=64, seed=0)
calibration = burgers.sample(100, resolution=64, seed=1)
test = burgers.sample(64, resolution=64, seed=2)

operator = pn.operators.FNO(1, 1, modes=(8,), width=WIDTH, depth=DEPTH, seed=0)
pn.fit(operator, train, epochs=EPOCHS, seed=0)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.VarianceScale().fit(predictor, calibration)

path = Path("burgers.onnx")
pn.export.to_onnx(predictor, path, example=test.inputs[:1])
print(f"{path.name}: {path.stat().st_size / 1024:.0f} KB")

# From here on, only the file, NumPy and onnxruntime are needed.
session = onnxruntime.InferenceSession(path)
about = json.loads(session.get_modelmeta().custom_metadata_map["probneural"])
print("from", about["inputs"][0]["shape"], "on", about["inputs"][0]["grid"])
print("to", {output["name"]: output["shape"] for output in about["outputs"]})
values = test.inputs.values.numpy()  # (n, c, *grid), any n
mean, standard_deviation = session.run(["mean", "standard_deviation"], {"values": values})
inside = np.abs(test.outputs.values.numpy() - mean) <= 1.96 * standard_deviation
print(f"inside the 95 % intervals: {inside.mean():.3f}")

u = predictor(test.inputs)
print(
    "largest difference from PyTorch: "
    f"{np.abs(mean - u.mean.numpy()).max() / np.abs(mean).max():.0e} of the field"
)

figure = Figure(figsize=(6.4, 3.2), layout="constrained")
axes = figure.subplots()
x, sd = test.inputs.grid.points[:, 0], standard_deviation[0, 0]
axes.fill_between(
    x,
    mean[0, 0] - 1.96 * sd,
    mean[0, 0] + 1.96 * sd,
    alpha=0.3,
    label="95 % interval, from the file",
)
axes.plot(x, mean[0, 0], label="mean, from the file")
axes.plot(x, test.outputs.values[0, 0], color="black", linestyle="--", label="truth")
axes.set(xlabel="x", ylabel="state at t = 1")
axes.legend(frameon=False)
figure.savefig("export_a_predictor.png", dpi=120)
