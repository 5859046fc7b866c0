"""Exercises on Triton kernels: where an answer came from, and how fast it is."""
