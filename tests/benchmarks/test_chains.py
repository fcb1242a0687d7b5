"""The benchmark of posteriors over all layers: its parts add up, and its networks are those it names."""

from __future__ import annotations

import torch

from benchmarks import chains


def test_seconds_of_all_stages_are_counted_in_epochs() -> None:
    (chain,) = chains.chains(small=True)
    found = chains._measured(chain, 0, epochs=2)
    seconds = found["fit (s)"] + found["scale (s)"] + found["score (s)"]
    assert found["in epochs"] == 1e3 * seconds / found["epoch (ms)"]
    assert min(found.values()) > 0.0


def test_networks_map_the_fields_of_their_problem_and_repeat_by_seed() -> None:
    for chain in chains.chains(small=False):
        data = chain.problem.sample(2, resolution=chain.resolution, seed=0)
        first, again, other = (chain.operator(seed) for seed in (0, 0, 1))
        weights = [torch.cat([part.flatten() for part in network.parameters()]) for network in (first, again, other)]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])
        if isinstance(first, chains.Convolutions | chains.UNet):
            assert first(data.inputs.values).shape == data.outputs.values.shape
