"""Learn an operator from fewer simulations: the posterior selects the next inputs.

Inputs are an initial state and a viscosity; states of low viscosity form shocks and are hard. Two
loops start from the same random samples. One continues at random; the other prefers candidates of
a pool with a large posterior variance. Every result is stored: restart a killed script, and it
continues.
"""

import functools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import probneural as pn

LABELS, POOL, TEST, WIDTH, EPOCHS = 256, 2000, 200, 20, 80

folder = Path(tempfile.mkdtemp())  # a permanent folder lets the loop resume


def candidates(count, *, seed):
    """Initial states, each with the logarithm of a viscosity as a second, constant channel."""
    states = pn.problems.Burgers().sample_inputs(count, resolution=64, seed=seed)
    share = torch.rand(count, 1, 1, generator=torch.Generator().manual_seed(seed))
    return pn.Field(
        torch.cat([states.values, (2 * share - 1).expand_as(states.values)], dim=1), states.grid
    )


def simulate(inputs):
    """Your simulator: one input function to one output function."""
    viscosity = 0.01 * 4 ** float(inputs.values[0, 1, 0])  # from 0.0025 to 0.04
    return pn.problems.Burgers(viscosity=viscosity).solve(
        pn.Field(inputs.values[:, :1], inputs.grid)
    )


def loop(acquisition):
    return pn.active.ActiveLearner(
        simulate,
        pn.heads.LastLayerLaplace(),
        acquisition=acquisition,
        pool=candidates(POOL, seed=0),
        store=folder / type(acquisition).__name__,
        training=pn.active.OperatorTraining(
            pn.operators.FNO(in_channels=2, out_channels=1, modes=(12,), width=WIDTH, seed=0),
            train=functools.partial(
                pn.fit, epochs=EPOCHS, data=pn.training.DataOptions(validation=0.0)
            ),  # all labels train
        ),
        plan=pn.active.LearningPlan(
            initial=16,
            batch=pn.active.Growth(2.0),  # 16, 32, 64, ...
            calibration=40,  # random, untrained: half scale variances, half are for a band
            calibrate=pn.calibration.VarianceScale(),
            test=test,  # only for the table and the figure
        ),
        simulation=pn.active.SimulationOptions(
            executor=ThreadPoolExecutor(2),  # for fast solvers; omit for slow ones
            show_progress=False,
        ),
    )


inputs = candidates(TEST, seed=1)
test = pn.FieldPairs(
    inputs, pn.Field.cat([simulate(inputs[number]) for number in range(len(inputs))])
)

at_random = loop(pn.active.RandomSelection()).run(labels=LABELS)
chosen = loop(pn.active.StochasticSelection())
chosen.run(labels=LABELS // 2)  # the machine fails here
chosen = loop(pn.active.StochasticSelection())  # the same arguments and the same store
chosen.run(labels=LABELS)

print(f"random\n{at_random}\nchosen\n{chosen.history}")
pn.plots.active_learning({"random": at_random, "chosen": chosen.history}).savefig(
    "learn_an_operator.png", dpi=120
)

# Calibration samples are random, so a conformal band on the second half has its guarantee.
band = pn.calibration.SimultaneousBand(level=0.9).fit(chosen.predictor, chosen.conformal_pairs)
print(f"test functions inside their 90 % band everywhere: {band.coverage(test):.0%}")
