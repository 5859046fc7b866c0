"""Whole numbers for launchers: Triton's own functions for them take microseconds a call from Python."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_2(n: int) -> int:
    """Return the smallest power of two that is not less than ``n``; 1 for 0."""
    return 1 << max(n - 1, 0).bit_length()
