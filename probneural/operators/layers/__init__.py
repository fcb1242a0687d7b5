"""Layers of operators: spectral and pointwise layers, normalisers, position embeddings."""

from probneural.operators.layers.normalizer import ChannelNormalizer as ChannelNormalizer
from probneural.operators.layers.pointwise import PointwiseLinear as PointwiseLinear
from probneural.operators.layers.pointwise import ReadoutLinear as ReadoutLinear
from probneural.operators.layers.pointwise import channels_innermost as channels_innermost
from probneural.operators.layers.position import Embedding as Embedding
from probneural.operators.layers.position import check_embedding as check_embedding
from probneural.operators.layers.position import position_channels as position_channels
from probneural.operators.layers.position import position_embedding as position_embedding
from probneural.operators.layers.spectral import Ends as Ends
from probneural.operators.layers.spectral import SpectralConv as SpectralConv
