"""Two ways to add knowledge to a posterior: a constraint that each field obeys, and measurements of some fields.

`constrain` gives every field its own linear constraint, here the conservation of its integral. `condition` learns from
measurements of four fields what they say about all the others, through the latent that the fields share.
"""

import probneural as pn

FUNCTIONS, WIDTH, EPOCHS = 256, 32, 50

burgers = pn.problems.Burgers(viscosity=0.1)
train = burgers.sample(FUNCTIONS, resolution=128, seed=0)
calibration = burgers.sample(50, resolution=128, seed=1)
test = burgers.sample(40, resolution=128, seed=2)

operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(16,), width=WIDTH, seed=0)
pn.fit(operator, train, epochs=EPOCHS, seed=0)
predictor = pn.heads.LastLayerLaplace().fit(operator, train)
predictor = pn.calibration.VarianceScale().fit(predictor, calibration)
u = predictor(test.inputs)

total = pn.functionals.integral(test.outputs.grid)
lawful = u.constrain(total, total(test.outputs.values))
print(f"largest error of the integral, before {float((total(u.mean) - total(test.outputs.values)).abs().max()):.1e}")
print(f"                               after  {float((total(lawful.mean) - total(test.outputs.values)).abs().max()):.1e}")

probe = pn.functionals.sensors(test.outputs.grid, [[x / 16] for x in range(16)])
seen, unseen = u[:4], u[4:]
measured = seen.condition(probe, probe(test.outputs.values[:4]), noise=predictor.noise)
informed = unseen.under(measured.latent)
print(f"chi^2 per measurement {measured.latent.chi2:.2f}")
for name, field in (("before", unseen), ("after", informed)):
    scores = pn.metrics.score(field, test.outputs[4:], noise=predictor.noise)
    sd = float(field.standard_deviation.mean())
    print(f"unmeasured fields, {name:6s}: relative L2 {scores.relative_l2:.4f}, mean sd {sd:.1e}")

figure = pn.plots.fields({"before": unseen, "after": informed}, test.outputs[4:], index=0, noise=predictor.noise)
figure.savefig("physics_and_data.png", dpi=120)
