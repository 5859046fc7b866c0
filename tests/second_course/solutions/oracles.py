"""Right answers that several exercises need."""


def mean(x):
    """Return the mean of each row of `x` [N, D]."""
    return x.mean(-1)
