"""Continuous batching: every token of every request is counted once, and contexts grow by one a step."""

import itertools

import numpy as np
import pytest

from mla_ref import WORKLOADS, Workload, serve, serving_steps, token_rate

CONSTANT = Workload(prompt=(7,) * 18, generated=(5,) * 18)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=map("-".join, WORKLOADS))
def test_every_request_is_served(workload):
    batch, requests = 8, 50
    generator = np.random.default_rng(3)
    _, generated = workload.draw(requests, generator)
    before = generator.integers(0, generated[:batch]).sum()  # what those of the first step had
    served = serve(workload, lambda contexts: 1e-3 * len(contexts), batch=batch, requests=requests, seed=3)
    assert served.tokens == generated.sum() - before
    assert served.seconds == pytest.approx(1e-3 * served.tokens)
    assert served.tokens_per_second == pytest.approx(1e3)


def test_contexts_are_prompt_and_what_was_generated():
    steps = list(serving_steps(CONSTANT, batch=3, requests=9))
    assert all((contexts >= 8).all() and (contexts <= 12).all() for contexts in steps)
    assert [len(contexts) for contexts in steps[:10]] == [3] * 10  # who is done is replaced
    assert len(steps[-1]) < 3  # and at the end the batch empties
    for before, after in itertools.pairwise(steps[:10]):
        assert set(after) <= {context + 1 for context in before} | {8}


def test_lengths_follow_the_quantiles():
    workload = WORKLOADS["deepseek_v3", "mmlu"]
    for lengths, quantiles in zip(
        workload.draw(20000, np.random.default_rng(0)), (workload.prompt, workload.generated), strict=True
    ):
        assert abs(np.median(lengths) - quantiles[7]) <= 0.05 * quantiles[7]
        assert quantiles[0] <= lengths.min() and lengths.max() <= quantiles[-1]


def test_the_papers_table_follows_from_its_attention_time():
    for attention, rate in ((99.1, 1.01), (34.5, 2.04), (26.9, 2.33), (58.1, 1.48), (25.9, 2.37), (22.0, 2.56)):
        assert token_rate(128, attention=attention * 1e-3, other=28.1e-3) == pytest.approx(rate * 1e3, abs=6)


def test_numbers_that_make_no_batch_are_refused():
    with pytest.raises(ValueError, match="requests is 2, expected at least batch = 3"):
        list(serving_steps(CONSTANT, batch=3, requests=2))
    with pytest.raises(ValueError, match="expected times"):
        token_rate(128, attention=-1.0, other=0.0)
