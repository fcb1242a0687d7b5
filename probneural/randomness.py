"""Random streams: one way from a seed, a purpose and indices to random numbers that nothing else sees.

A seed names an experiment, not a stream: the functions that are drawn, their split and the batches of a training may all have
seed 0 and must not share their numbers. So every stream is the hash (SHAKE-256) of its purpose, its seed and its indices,
written without ambiguity. Seeds are not added up: neighbours would share streams.

PyTorch's CPU generator, a Mersenne Twister, reads 32 bits of the seed it is given, so seeds that are 2^32 apart are one stream.
Here its whole state of 19,968 bits is taken from the hash, and two streams are as distinct as two hashes. Generators of other
devices take 64 bits. Code that wants an integer gets 32, as `stream_seed` says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Final

import numpy as np
import torch

from probneural.contexts import GLOBAL_GENERATORS
from probneural.errors import ArgumentError

PURPOSES: Final = {
    # data and draws
    "functions": "coefficients of the input functions of a problem",
    "shapes": "domains and sources of Poisson problems on shapes",
    "airfoils": "shapes and angles of airfoils",
    "sphere states": "initial states of heat on the sphere",
    "shifts": "by how many cells functions are moved along periodic axes",
    "split": "which pairs go to which part",
    "run split": "which pairs of a run are trained on, scale, carry bands, test",
    "draws": "draws from predictive distributions, and the functions that predictors and models draw",
    "energy score draws": "seeds of the draws behind energy scores",
    "energy score noise": "observation noise behind energy scores",
    "sup-quantile draws": "seeds of the draws behind whole-function coverage, per batch of draws",
    "sup-quantile noise": "observation noise behind whole-function coverage, per batch of draws",
    "forecast scores": "seed of the scores of a forecast, per lead and first function",
    "rank noise": "observation noise behind ranks of the truth among members",
    "spectrum draws": "seeds of the draws behind power spectra",
    "spectrum noise": "observation noise behind power spectra",
    "rank correlation draws": "seeds of the draws behind attainable rank correlations, per draw",
    "rank correlation noise": "observation noise behind attainable rank correlations, per draw",
    "nonlinear functional draws": "seeds of the draws behind nonlinear functionals of fields, per batch of draws",
    "discrepancy draws": "latent vectors of discrepancies in draws by seed",
    "mixture component": "components and scales of mixtures in draws by seed",
    "roll-out draws": "seeds of the operators of a roll-out, per member, and per lead where they are fresh at every step",
    "roll-out starts": "seeds of the states that members of a roll-out start from, per member",
    "filter starts": "seeds of the states that members of a filter start from, where the step is a function, per member",
    "likelihood points": "points at which the correlation of residuals is judged",
    "scale mixture draws": "seeds of the draws that scales are compared with, per first function of a few",
    "local scale points": "points whose residuals say how large variances are along a function",
    "novelty points": "points whose residuals say how variances grow with novelty",
    "synthetic shifts": "strengths of synthetic shifts, and which functions are added up, per kind",
    # training
    "validation": "seed of the split into what is trained on and what is watched",
    "batches": "order of the pairs, per epoch",
    "trial step": "random numbers of an optimiser that is tried before a checkpoint is restored",
    "training": "what layers and losses draw while they train, dropout for example, per epoch and process after the first",
    "workers": "seeds that torch's loader gives its workers, which draw nothing",
    # curvature
    "spectral density": "probes of stochastic Lanczos quadrature",
    "eigenpairs": "starts of block Lanczos",
    "rounding of products": "vectors whose products are formed in both precisions",
    "diagonal": "signs of XDiag",
    "row squares": "projections and probes behind variances that are estimated",
    "row magnitude": "latents behind the size of a Jacobian root",
    "gradient rows": "projections of the rows of a Gauss-Newton matrix",
    "kronecker signs": "signs of the sketch that tells real from complex blocks",
    "kronecker weights": "what that sketch is projected on",
    "canonical basis": "directions that signs of eigenvectors, and bases of null spaces, are chosen by",
    # heads
    "residual sketch": "groups and signs of the grid points that residuals on fine grids are summed in",
    "read-out response": "features that test whether a layer is a read-out",
    "read-out parameters": "changes that test which weights of a read-out are parameters",
    "placed features": "an input function that shows where the features of an exported read-out are",
    "sampled weights": "weights drawn from a Laplace posterior",
    "kernel paths": "functions drawn from a kernel operator",
    "reinitialisation check": "weights that test whether a reinitialisation draws all of them",
    "ensemble member": "seed of a member's recipe, per member",
    "vmap check": "input at which members that are evaluated together are compared with single ones",
    "member training": "weights of a member, and what its recipe draws from torch's global generators",
    "weight batches": "which functions the steps of a posterior over all weights see, per chain",
    "stiffest direction": "the first vector of a power iteration",
    "weight units": "draws whose mean squares are the units of a variational posterior over all weights",
    "network variational": "draws of a variational posterior over all weights",
    # inverse problems
    "outputs given data": "draws of outputs given the data of an inverse problem, per target and batch",
    "posterior start": "starts of solvers of an inverse problem",
    "posterior blocks": "proposals of Markov chains, per block of steps",
    "posterior sampling": "particles and moves of tempered samplers",
    "Kalman inversion": "members and errors of ensemble Kalman inversion",
    "inversion starts": "starts of the search for the most probable parameters",
    "laplace draws": "draws from Gauss-Newton approximations of inverse problems",
    "posterior steps": "what Pyro draws from torch's global generators, per block of steps",
    # operators and active learning
    "weights": "initial weights of operators",
    "acquisition": "seed of expected improvement and its optimisation, per evaluation",
    "paths": "seeds of the functions that a model draws, per function after the first",
    "ties": "the order of equal scores in a pool",
    "stochastic selection": "Gumbel noise on the scores of a pool",
    "random start": "the first labels and the calibration functions of a loop",
    "round recipe": "seed of a loop's recipe, per round",
    "round training": "what a loop's recipe draws from torch's global generators, per round",
    "round head": "what a loop's head and calibrator draw from torch's global generators, per round",
    "round choice": "seed of a loop's acquisition, per round",
    "round candidates": "what a loop's candidates draw from torch's global generators, per round",
}
"""Purposes of streams: names are unique. Other packages add theirs."""

_WORDS = 624
"""Words of 32 bits in the state of a Mersenne Twister."""
_FRESH = torch.Generator("cpu").manual_seed(0).get_state().numpy().copy()
"""A state in the format of PyTorch's files, none of whose words has been drawn: the seed in 8 bytes, 16 more, the words in 8
bytes each, and the cache of normals."""


def check_seed(seed: object, *, name: str = "seed") -> int:
    """Return a seed as a plain integer.

    Args:
        seed: Any non-negative integer, of NumPy too; there is no upper limit.
        name: Name in messages.

    Raises:
        ArgumentError: If it is another value, or a truth value.
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise ArgumentError(expected=f"{name} as an integer of at least 0", got=repr(seed), remedy=f"for example {name}=0")
    return int(seed)


def stream_seed(seed: int, purpose: str, *indices: int) -> int:
    """An integer seed for a stream, for code that takes nothing else: recipes, SciPy, BoTorch.

    It has 32 bits, all that PyTorch's CPU generator reads and NumPy's legacy one accepts, so two of them agree by accident with
    probability 2^-32.

    Args:
        seed: Names the experiment; a non-negative integer.
        purpose: One of `PURPOSES`.
        indices: Tell the streams of one purpose from each other.

    Raises:
        ArgumentError: If the seed is invalid, or the purpose is not registered.

    Examples:
        >>> stream_seed(0, "ensemble member", 0) == stream_seed(0, "ensemble member", 1)
        False
    """
    return int.from_bytes(_digest(seed, purpose, indices, size=4), "little")


def stream(seed: int | None, purpose: str, *indices: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator at the start of a stream.

    Args:
        seed: Names the experiment; a non-negative integer, or None for a fresh one from the operating system.
        purpose: One of `PURPOSES`.
        indices: Tell the streams of one purpose from each other.
        device: Device of the generator.

    Raises:
        ArgumentError: If the seed is invalid, or the purpose is not registered.

    Examples:
        >>> first, again, other = stream(0, "split"), stream(0, "split"), stream(0, "batches")
        >>> float(torch.rand((), generator=first)) == float(torch.rand((), generator=again))
        True
        >>> float(torch.rand((), generator=again)) == float(torch.rand((), generator=other))
        False
    """
    generator = torch.Generator(device)
    _start(generator, secrets.randbits(128) if seed is None else seed, purpose, indices)
    return generator


@contextlib.contextmanager
def seeded(
    seed: int, purpose: str, *indices: int, devices: Iterable[torch.device] = ()
) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Start torch's global generators at a stream, and give them back as they were.

    It is for code that draws from them: constructors of layers, dropout, recipes, Pyro. One thread at a time. What it yields
    gives them back for a while, `with given_back():`, to code of the caller's in between; what that draws is drawn.

    Args:
        seed: Names the experiment; a non-negative integer.
        purpose: One of `PURPOSES`.
        indices: Tell the streams of one purpose from each other.
        devices: Whose generators take part beside the CPU's. The current device of a GPU in use takes part too.

    Raises:
        ArgumentError: If the seed is invalid, or the purpose is not registered.
    """
    with GLOBAL_GENERATORS:
        generators = _global_generators(devices)
        states = [generator.get_state() for generator in generators]

        def exchange() -> None:
            for number, generator in enumerate(generators):
                state = generator.get_state()
                generator.set_state(states[number])
                states[number] = state

        @contextlib.contextmanager
        def given_back() -> Iterator[None]:
            exchange()
            try:
                yield
            finally:
                exchange()

        try:
            for generator in generators:
                _start(generator, seed, purpose, indices)
            yield given_back
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


def _digest(seed: int, purpose: str, indices: Iterable[int], *, size: int) -> bytes:
    """Bytes of a stream; fewer of them are the beginning of more."""
    if purpose not in PURPOSES:
        raise ArgumentError(
            expected="a purpose from probneural.randomness.PURPOSES", got=repr(purpose), remedy="register it there, with a line"
        )
    key = json.dumps([purpose, *map(hex, (check_seed(seed), *indices))])
    return hashlib.shake_256(key.encode()).digest(size)


def _start(generator: torch.Generator, seed: int, purpose: str, indices: Iterable[int]) -> None:
    """Put a generator at the start of a stream."""
    if generator.device.type != "cpu":
        generator.manual_seed(int.from_bytes(_digest(seed, purpose, indices, size=8), "little"))
        return
    words = _digest(seed, purpose, indices, size=4 * _WORDS)
    state = _FRESH.copy()
    state[:8] = np.frombuffer(words, np.uint8, 8)  # the value of `initial_seed`
    state[24 : 24 + 8 * _WORDS].view("<u8")[:] = np.frombuffer(words, "<u4")
    generator.set_state(torch.from_numpy(state))


def global_generator(device: torch.device) -> torch.Generator:
    """PyTorch's global generator of a device."""
    if device.type in ("cpu", "meta"):
        return torch.default_generator
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    module = torch.get_device_module(device)
    module.init()
    return module.default_generators[module.current_device() if device.index is None else device.index]


def _global_generators(devices: Iterable[torch.device]) -> list[torch.Generator]:
    """PyTorch's global generators of the CPU, of the devices and of a GPU in use, each once."""
    places = [torch.device("cpu"), *devices]
    gpu = torch.accelerator.current_accelerator()
    if gpu is not None and gpu.type != "mps" and torch.get_device_module(gpu).is_initialized():
        places.append(gpu)
    generators = [global_generator(place) for place in places]
    return list({id(generator): generator for generator in generators}.values())
