"""The table of decode kernels: every variant reads a contiguous cache and one in pages.

To add a variant is to write its two launchers, in a file of its own, and to add its line to :data:`DECODERS`: the tests
and the benchmarks go over the table.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from .decode import latent_attention, paged_latent_attention
from .decode_hopper import latent_attention_hopper, paged_latent_attention_hopper
from .decode_tma import latent_attention_tma, paged_latent_attention_tma


class Decoder(NamedTuple):
    """Launchers with the signatures of :func:`latent_attention` and :func:`paged_latent_attention`."""

    contiguous: Callable[..., tuple[Tensor, Tensor]]
    paged: Callable[..., tuple[Tensor, Tensor]]


DECODERS = {
    "pointers": Decoder(latent_attention, paged_latent_attention),
    "tma": Decoder(latent_attention_tma, paged_latent_attention_tma),
    "hopper": Decoder(latent_attention_hopper, paged_latent_attention_hopper),
}
FASTEST = "hopper"  # which leaves to "tma", and that to "pointers", what it is not made for
