"""Layers of operators: spectral and pointwise layers, normalisers, position embeddings."""

from probneural.operators.layers.normalizer import ChannelNormalizer
from probneural.operators.layers.pointwise import ChannelMLP, PointwiseLinear, ReadoutLinear, channels_innermost
from probneural.operators.layers.position import Embedding, check_embedding, position_channels, position_embedding
from probneural.operators.layers.spectral import Ends, SpectralConv

__all__ = [
    "ChannelMLP",
    "ChannelNormalizer",
    "Embedding",
    "Ends",
    "PointwiseLinear",
    "ReadoutLinear",
    "SpectralConv",
    "channels_innermost",
    "check_embedding",
    "position_channels",
    "position_embedding",
]
