"""Draw a band, maps, a fan, a forecast over space and time, and the reliability of predictions."""

import probneural as pn

FUNCTIONS, HELD_OUT, TEST, WIDTH, EPOCHS, MEMBERS = 64, 100, 50, 16, 30, 16


def learned(problem, resolution, modes):
    """A calibrated predictor of a problem, and test pairs."""
    train = problem.sample(FUNCTIONS, resolution=resolution, seed=0)
    held_out = problem.sample(HELD_OUT, resolution=resolution, seed=1)
    shape = {
        "in_channels": train.inputs.channels,
        "out_channels": 1,
        "modes": modes,
        "width": WIDTH,
    }
    operator = pn.operators.FNO(**shape, periodic=train.inputs.grid.periodic, seed=0)
    pn.fit(operator, train, epochs=EPOCHS, seed=0, show_progress=False)
    predictor = pn.heads.LastLayerLaplace().fit(operator, train)
    test = problem.sample(TEST, resolution=resolution, seed=2)
    return pn.calibration.calibrate(predictor, held_out, level=0.9, seed=0), test


burgers = pn.problems.Burgers(viscosity=0.01, time=0.1)
predictor, test = learned(burgers, 64, (12,))
u, band = predictor(test.inputs), predictor.band(test.inputs)
pn.plots.band(band, test.outputs, label="velocity").savefig("drawn_band.png", dpi=100)
reliability = pn.plots.calibration(u, test.outputs, noise=predictor.noise)
reliability.savefig("drawn_reliability.png", dpi=100)

truth = burgers.trajectory(TEST, times=[0.1 * k for k in range(1, 11)], resolution=64, seed=3)
forecast = predictor.rollout(truth.start, steps=10, members=MEMBERS, seed=0)
probe = pn.functionals.sensors(forecast.grid, [[0.75]]).named("velocity at x = 0.75")
pn.plots.fan(forecast, probe, truth=truth).savefig("drawn_fan.png", dpi=100)
pn.plots.space_time(forecast, truth, label="velocity").savefig("drawn_forecast.png", dpi=100)

predictor, test = learned(pn.problems.Darcy2D(), 32, (8, 8))
maps = pn.plots.field(predictor(test.inputs), test.outputs, label="pressure")
maps.savefig("drawn_maps.png", dpi=100)
