"""Continuous batching without a model: how long the contexts of a batch are while requests come and go.

Attention's cost depends on these lengths. :func:`serve` draws requests, replaces those that finish, and counts tokens
over what each step took.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ._validate import check_positive

SHARES = (
    0,
    1,
    5,
    10,
    20,
    30,
    40,
    50,
    60,
    70,
    80,
    90,
    95,
    98,
    99,
    99.5,
    99.9,
    100,
)  # per cent of requests that are at most as long as the number in their place


@dataclass(frozen=True)
class Workload:
    """Lengths of requests, as quantiles at :data:`SHARES`: tokens of the prompt, and tokens generated for it."""

    prompt: tuple[int, ...]
    generated: tuple[int, ...]

    def draw(self, count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return int64 ``[count]`` prompt and generated lengths, interpolated between quantiles, drawn apart."""
        shares = generator.random((2, count)) * 100
        lengths = (
            np.interp(share, SHARES, each) for share, each in zip(shares, (self.prompt, self.generated), strict=True)
        )
        return tuple(np.rint(each).astype(np.int64).clip(min=1) for each in lengths)


# Questions of three public sets and what two models answered, in tokens of each model.
WORKLOADS: dict[tuple[str, str], Workload] = {
    ("deepseek_v3", "gsm8k"): Workload(
        prompt=(14, 28, 34, 38, 43, 47, 52, 56, 61, 67, 75, 89, 100, 116, 127, 139, 165, 216),
        generated=(94, 127, 158, 174, 195, 214, 231, 247, 265, 291, 328, 467, 793, 1141, 1476, 1822, 2776, 4507),
    ),
    ("deepseek_v3", "mmlu"): Workload(
        prompt=(40, 47, 52, 56, 62, 70, 78, 89, 104, 121, 150, 249, 323, 409, 477, 533, 661, 995),
        generated=(23, 70, 103, 126, 152, 172, 190, 208, 231, 263, 318, 412, 515, 673, 821, 1027, 1545, 2801),
    ),
    ("deepseek_v3", "simpleqa"): Workload(
        prompt=(8, 13, 15, 16, 19, 20, 22, 23, 25, 28, 31, 36, 43, 50, 56, 63, 71, 107),
        generated=(14, 36, 49, 59, 73, 83, 94, 103, 114, 126, 142, 170, 203, 249, 279, 315, 441, 527),
    ),
    ("kimi_k2", "gsm8k"): Workload(
        prompt=(36, 50, 56, 60, 65, 69, 74, 78, 83, 89, 97, 111, 122, 137, 148, 160, 186, 241),
        generated=(10, 45, 61, 70, 85, 98, 111, 125, 142, 161, 185, 221, 259, 318, 412, 615, 1290, 15171),
    ),
    ("kimi_k2", "mmlu"): Workload(
        prompt=(62, 69, 74, 78, 85, 93, 101, 112, 127, 143, 174, 272, 347, 434, 501, 561, 692, 1006),
        generated=(3, 3, 5, 6, 8, 11, 18, 48, 75, 104, 151, 235, 327, 482, 718, 964, 1712, 16384),
    ),
    ("kimi_k2", "simpleqa"): Workload(
        prompt=(30, 35, 37, 38, 41, 42, 44, 46, 47, 50, 53, 59, 65, 72, 79, 86, 96, 130),
        generated=(4, 12, 15, 17, 20, 22, 24, 26, 29, 32, 37, 48, 62, 95, 138, 186, 282, 2076),
    ),
}

# Tokens of system prompts in use: TyphoonMLA, table 2.
SYSTEM_PROMPTS = {"A": 26472, "B": 7069, "C": 4759}


@dataclass(frozen=True)
class Served:
    """What :func:`serve` counts: tokens generated, steps, and the seconds that these took."""

    tokens: int
    steps: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Per layer, where the time of a step is that of one layer."""
        return self.tokens / self.seconds


def serving_steps(workload: Workload, *, batch: int, requests: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield of each step the contexts of the batch, int64 ``[running]``, without what the requests share.

    A step gives every running request a token, which counts. Who is done is replaced, until ``requests`` have come;
    then the batch empties. At first ``batch`` requests are there, somewhere between their first token and their last.

    Raises
    ------
    TypeError, ValueError
        ``batch`` or ``requests`` is no positive number, or there are fewer requests than places.
    """
    check_positive(batch=batch, requests=requests)
    if requests < batch:
        raise ValueError(f"requests is {requests}, expected at least batch = {batch}")
    generator = np.random.default_rng(seed)
    prompt, generated = workload.draw(requests, generator)
    waiting = iter(range(batch, requests))
    running = np.arange(batch)
    done = generator.integers(0, generated[:batch])  # tokens that each had before
    while len(running):
        done = done + 1
        yield prompt[running] + done
        finished = done >= generated[running]
        new = [next(waiting, -1) for _ in range(int(finished.sum()))]
        running[finished], done[finished] = new, 0
        running, done = running[running >= 0], done[running >= 0]


def serve(
    workload: Workload,
    step_time: Callable[[np.ndarray], float],
    *,
    batch: int,
    requests: int,
    seed: int = 0,
) -> Served:
    """Run requests through a batch and count: TyphoonMLA's measure, tokens per second and layer.

    Parameters
    ----------
    workload
        Of :data:`WORKLOADS`, or another.
    step_time
        Seconds of a step whose contexts are an int64 array ``[running]``, what is shared not counted.
    batch, requests, seed
        As of :func:`serving_steps`.

    References
    ----------
    TyphoonMLA, section 4, experiments on NPUs.
    """
    tokens = count = 0
    seconds = 0.0
    for contexts in serving_steps(workload, batch=batch, requests=requests, seed=seed):
        tokens, count, seconds = tokens + len(contexts), count + 1, seconds + step_time(contexts)
    return Served(tokens, count, seconds)


def token_rate(batch: int, *, attention: float, other: float) -> float:
    """Return tokens per second of a model whose step takes ``attention`` and ``other`` seconds.

    References
    ----------
    TyphoonMLA, table 3: 128 sequences, and 28.1 ms besides attention.
    """
    check_positive(batch=batch)
    if not (attention >= 0 and other >= 0 and attention + other > 0):
        raise ValueError(f"attention is {attention} s and other {other} s, expected times")
    return batch / (attention + other)
