"""What operators share: spectral and pointwise layers, normalisers, position embeddings."""

from probneural.operators.layers.layout import channels_innermost
from probneural.operators.layers.normalizer import ChannelNormalizer
from probneural.operators.layers.pointwise import PointwiseLinear
from probneural.operators.layers.position import position_channels, position_embedding
from probneural.operators.layers.spectral import SpectralConv

__all__ = [
    "ChannelNormalizer",
    "PointwiseLinear",
    "SpectralConv",
    "channels_innermost",
    "position_channels",
    "position_embedding",
]
