"""Learn a new operator from a few pairs without training: the posterior shrinks with each pair.

A set transformer is trained once, on tasks of many random convolutions with noisy outputs. Pairs of
a convolution that it has not seen are then its context: `fit` and `condition` are forward passes.
"""

import matplotlib.pyplot as plt
import torch

import probneural as pn

TASKS, EPOCHS, PAIRS, OPERATORS = 27_000, 3, 8, 50
NOISE = 0.1

functions = pn.problems.Heat(
    dimension=1, random_field=pn.problems.GaussianRandomField(1, 7, sigma=4.0, tau=2.0, alpha=1.0)
)


class Convolution:
    """u = kernel * f + noise, with independent normal Fourier coefficients of the kernel."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.symbol = torch.randn(8, dtype=torch.complex64, generator=generator)

    def sample(self, n: int, *, resolution: int, seed: int) -> pn.FieldPairs:
        inputs = functions.sample_inputs(n, resolution=resolution, seed=seed)
        spectrum = self.symbol * torch.fft.rfft(inputs.values)[..., :8]
        outputs = torch.fft.irfft(spectrum, n=resolution)
        noise = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(seed))
        return pn.FieldPairs(inputs, pn.Field(outputs + NOISE * noise, inputs.grid))


tasks = pn.operators.context_tasks(Convolution, tasks=TASKS, pairs=PAIRS, resolution=16, seed=0)
operator = pn.operators.InContextOperator(in_channels=1, out_channels=1, modes=(8,), seed=0)
pn.fit(
    operator,
    tasks,
    epochs=EPOCHS,
    loss=operator.negative_log_density,
    data=pn.training.DataOptions(batch_size=64),
    show_progress=False,
)

print("pairs   RMSE     sd   inside the 90 % interval   (of noisy outputs)")
head, sizes = pn.heads.InContext(), (1, 2, 4, 8)
for size in sizes:
    errors, deviations = [], []
    for seed in range(OPERATORS):
        pairs = Convolution(10**6 + seed).sample(PAIRS + 1, resolution=16, seed=2 * 10**6 + seed)
        u = head.fit(operator, pairs[:size])(pairs[PAIRS:].inputs)
        errors.append(pairs[PAIRS:].outputs.values - u.mean)
        deviations.append(u.std)
    error, deviation = torch.cat(errors), torch.cat(deviations)
    inside = (error.abs() <= 1.645 * deviation).float().mean()
    rmse, sd = error.square().mean().sqrt(), deviation.square().mean().sqrt()
    print(f"{size:5d} {rmse:6.3f} {sd:6.3f}   {inside:.0%}")

# One operator: its context grows by `condition`, and predictions are evaluated on a finer grid
pairs = Convolution(1).sample(PAIRS + 1, resolution=16, seed=1)
probe = pn.functionals.sensors(pairs.outputs.grid, pairs.outputs.grid.points)
fine = pn.Grid.uniform(128)
x = fine.points[:, 0]
figure, axes = plt.subplots(1, len(sizes), figsize=(9, 2.6), sharey=True, layout="constrained")
predictor = head.fit(operator, pairs[:1])
for size, panel in zip(sizes, axes, strict=True):
    new = pairs[len(predictor.inputs) : size]
    if len(new):
        predictor = predictor.condition(new.inputs, probe, values=probe(new.outputs.values))
    u = predictor(pairs[PAIRS:].inputs, fine)
    mean, half = u.mean[0, 0], 1.645 * u.std[0, 0]
    panel.fill_between(x, mean - half, mean + half, alpha=0.3, label="90 % interval")
    panel.plot(x, mean, label="mean")
    panel.plot(
        pairs.outputs.grid.points, pairs[PAIRS:].outputs.values[0, 0], "k.", label="noisy output"
    )
    panel.set(title=f"{size} pair{'s' * (size > 1)}", xlabel="x")
axes[0].legend(fontsize="small")
figure.savefig("learn_in_context.png")
