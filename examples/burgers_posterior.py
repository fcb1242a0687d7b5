"""Learn the Burgers operator, give it a posterior, and score both against the exact solution."""

import probneural as pn

FUNCTIONS, WIDTH, EPOCHS = 512, 32, 60

burgers = pn.problems.Burgers(viscosity=0.01)
train = burgers.sample(FUNCTIONS, resolution=128, seed=0)
held_out = burgers.sample(400, resolution=128, seed=1)
# On a finer grid
test = burgers.sample(200, resolution=256, seed=2)

operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(16,), width=WIDTH, seed=0)
history = pn.fit(operator, train, epochs=EPOCHS, seed=0)
print(f"validation error {history.validation[-1]:.4f}")

predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.calibrate(predictor, held_out, level=0.9, seed=0)
u = predictor(test.inputs)
print(pn.metrics.score(u, test.outputs, noise=predictor.noise))

print(f"whole fields inside the 90 % band: {float(predictor.band.coverage(test)):.3f}")

figure = pn.plots.field(u, test.outputs, index=0, noise=predictor.noise)
figure.savefig("burgers_posterior.png", dpi=120)
