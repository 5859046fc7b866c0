"""The part of the grader that runs beside a student's code: no oracle, no seed, no verdict.

These modules are copied into the sandbox as they are, so they import nothing from the rest of `autograder`.
"""
