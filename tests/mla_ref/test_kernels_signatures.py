import inspect

import pytest

import mla_ref

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref import kernels

# What a kernel takes that its PyTorch twin does not: places for results, and how to run.
ADDED = {"out", "lse", "num_splits"}
KERNELS = [name for name in kernels.__all__ if inspect.isfunction(getattr(kernels, name))]


def parameters(function, without=()):
    """Name, kind and default of each parameter, in order."""
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found if each.name not in without]


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_takes_what_its_twin_takes(name):
    kernel, twin = getattr(kernels, name), getattr(mla_ref, kernels.VARIANTS.get(name, name))
    added = ADDED - {each for each, _, _ in parameters(twin)}
    assert parameters(kernel, without=added) == parameters(twin)
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for each, kind, _ in parameters(kernel) if each in ADDED)


@pytest.mark.parametrize("name", kernels.VARIANTS)
def test_a_variant_takes_what_it_stands_in_for(name):
    assert parameters(getattr(kernels, name)) == parameters(getattr(kernels, kernels.VARIANTS[name]))


@pytest.mark.parametrize("decoder", kernels.DECODERS.values(), ids=kernels.DECODERS)
def test_every_decoder_reads_both_caches(decoder):
    assert parameters(decoder.contiguous) == parameters(kernels.latent_attention)
    assert parameters(decoder.paged) == parameters(kernels.paged_latent_attention)
    assert all(getattr(kernels, each.__name__) is each for each in decoder)


def test_an_argument_is_of_one_kind_everywhere():
    functions = [getattr(mla_ref, name) for name in mla_ref.__all__ if inspect.isfunction(getattr(mla_ref, name))]
    functions += [getattr(kernels, name) for name in KERNELS]
    found = [each for function in functions for each in parameters(function)]
    assert {default for name, _, default in found if name == "causal"} == {True}
    by_name = {"scale", "seq_lens", "causal", "starts", "lengths", "out", "lse"}
    assert {kind for name, kind, _ in found if name in by_name} == {inspect.Parameter.KEYWORD_ONLY}
