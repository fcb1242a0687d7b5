"""A forecast with honest error bars from an array (n, time, channel, height, width) of your own."""

import numpy as np

import probneural as pn

TRAJECTORIES, OTHERS, MEMBERS, WIDTH, EPOCHS = 100, 100, 32, 16, 30

# In general np.load("states.npy", mmap_mode="r"). Here: advection-diffusion on a periodic square.
rng, k = np.random.default_rng(0), np.fft.fftfreq(16, d=1 / 16)
decay = -0.005 * (2 * np.pi) ** 2 * (k[:, None] ** 2 + k**2) - 2j * np.pi * (
    1.0 * k[:, None] + 0.5 * k
)
start = np.fft.fft2(rng.normal(size=(TRAJECTORIES + 3 * OTHERS, 1, 16, 16))) * np.exp(
    -0.1 * (k[:, None] ** 2 + k**2)
)
times = 0.05 * np.arange(21)
states = np.fft.ifft2(start[:, None] * np.exp(times[:, None, None, None] * decay)).real.astype(
    np.float32
)

data = pn.data.Trajectories.from_array(states, times=times, periodic=True)
train, rest = data.split(TRAJECTORIES, seed=0)  # whole trajectories
fitting, rest = rest.split(OTHERS, seed=0)
scaling, test = rest.split(OTHERS, seed=0)

operator = pn.operators.FNO(
    in_channels=1, out_channels=1, modes=(6, 6), width=WIDTH, depth=2, seed=0
)
pn.fit(operator, train.windows(), epochs=EPOCHS, seed=0)
predictor = pn.heads.LastLayerLaplace().fit(operator, train.windows())
predictor = pn.calibration.VarianceScale().fit(predictor, fitting.windows())  # one step
before = predictor.rollout(scaling.at(0)[:], steps=20, members=MEMBERS, seed=0)
scale = pn.calibration.LeadScale().fit(before, scaling)  # every lead

# The same members: equal seeds sample equal operators.
forecast = scale(predictor.rollout(test.at(0)[:], steps=20, members=MEMBERS, seed=0))
scores = pn.metrics.score_by_lead(forecast, test)  # print(scores) shows them all
for lead in (1, 5, 10, 20):
    parts = (
        f"{name} {scores[name].values[lead - 1]:.3f}"
        for name in ("relative_l2", "spread_skill", "coverage")
    )
    print(f"lead {lead}:", *parts, sep="  ")
probe = pn.functionals.sensors(forecast.grid, [[0.25, 0.75]]).named("value at (0.25, 0.75)")
pn.plots.fan(forecast, probe, truth=test, times=times[1:]).savefig(
    "forecast_your_own_arrays.png", dpi=120
)
