"""The sample class of lesson 01."""

from autograder.course.sample import Expected, Submission, not_right, replace, slow
from autograder.judging.verdict import Outcome

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "a mean of columns, and a spread that is right all the same",
        patches=(replace("mean", "x.sum(-1) / x.shape[-1]", "x.sum(0) / x.shape[0]"),),
        expect={"mean": Expected(0, Outcome.WRONG, "mean of each column")},
    ),
    Submission(
        "cleo",
        "small blocks",
        patches=(replace("saxpy", "1024", "32"),),
        expect=slow("saxpy", 1),
    ),
    Submission(
        "dan",
        "adds outside of the kernel",
        patches=(
            replace("saxpy", "a * x + y, mask=mask", "a * x, mask=mask"),
            replace("saxpy", "    return out", "    return out + y"),
        ),
        expect=not_right("saxpy", "torch computes from data outside the kernels"),
    ),
)
