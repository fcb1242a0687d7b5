"""Two ways to add knowledge to a posterior: constraints and measurements.

`constrain` gives every field its own linear constraint, here the conservation of its integral.
`condition` is Bayes' rule on measurements: of this field and, through the shared latent, of all
others.
"""

import torch

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
print(
    "largest error of the integral, before "
    f"{float((total(u.mean) - total(test.outputs.values)).abs().max()):.1e}"
)
print(
    "                               after  "
    f"{float((total(lawful.mean) - total(test.outputs.values)).abs().max()):.1e}"
)

probe = pn.functionals.sensors(test.outputs.grid, [[0.1], [0.3], [0.5], [0.7], [0.9]])
noise = float(predictor.residual_variance) / 10  # variance of the sensors
exact = probe(test.outputs.values)
observations = exact + noise**0.5 * torch.randn(
    exact.shape, generator=torch.Generator().manual_seed(0)
)

# Five observations of a field inform this field most.
measured = [
    u[n : n + 1].condition(probe, observations[n : n + 1], noise=noise) for n in range(len(test))
]
for name, fields in (("before", [u[n : n + 1] for n in range(len(test))]), ("after", measured)):
    errors = [
        pn.metrics.relative_l2(pn.Field(v.mean, v.grid), test.outputs[n : n + 1])
        for n, v in enumerate(fields)
    ]
    sd = torch.cat([v.standard_deviation for v in fields]).mean()
    print(
        f"measured fields, {name:6s}: relative L2 {float(torch.cat(errors).mean()):.5f}, "
        f"mean sd {float(sd):.1e}"
    )
print(f"chi^2 per observation of the first: {measured[0].latent.chi2:.2f}")

# They inform other fields through the operator's weights, which training has determined: little.
together = u[:20].condition(probe, observations[:20], noise=noise)
for name, field in (("before", u[20:]), ("after", u[20:].under(together.latent))):
    error = pn.metrics.relative_l2(pn.Field(field.mean, field.grid), test.outputs[20:]).mean()
    print(
        f"other fields, {name:6s}: relative L2 {float(error):.5f}, "
        f"mean sd {float(field.standard_deviation.mean()):.1e}"
    )

figure = pn.plots.field(measured[0], test.outputs[:1])
figure.savefig("physics_and_data.png", dpi=120)
