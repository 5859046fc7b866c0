"""The sample class of lesson 01."""

from autograder.sample import Expected, Submission, add_cell, replace, rewrite, unfinished
from autograder.verdict import Outcome

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: matmul and transposes in place of einsum",
        patches=(
            rewrite(
                "attention",
                """
def attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    S, T = scores.shape[-2:]
    scores = scores + torch.full((S, T), -torch.inf).triu(T - S + 1)
    peak = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - peak)
    total = weights.sum(-1, keepdim=True)
    out = (weights / total) @ v
    return out.transpose(1, 2), (peak + total.log()).squeeze(-1).transpose(1, 2)
""",
            ),
        ),
    ),
    Submission(
        "chloe",
        "a helper in a cell of her own",
        patches=(
            add_cell(
                "attention",
                "from math import sqrt\n\ndef scaled(q, k):\n    return torch.einsum('bshd,bthd->bsht', q, k) / sqrt(q.shape[-1])",
            ),
            replace("attention", 'torch.einsum("bshd,bthd->bsht", q, k) / math.sqrt(q.shape[-1])', "scaled(q, k)"),
        ),
    ),
    Submission(
        "dev",
        "warns and prints",
        patches=(
            replace(
                "attention",
                "    S, T =",
                '    import warnings\n    warnings.warn("careful")\n    print(q.shape)\n    S, T =',
            ),
        ),
    ),
    Submission(
        "eli",
        "forgets the scale",
        patches=(replace("attention", " / math.sqrt(q.shape[-1])", ""),),
        expect={"attention": Expected(0, says="not scaled")},
    ),
    Submission(
        "hana",
        "hands in an unfinished cell",
        (unfinished("attention"),),
        {"attention": Expected(0, Outcome.UNFINISHED)},
    ),
    Submission(
        "ivan",
        "a syntax error in one cell",
        patches=(replace("attention", "def attention(q, k, v):", "def attention(q, k, v)"),),
        expect={"attention": Expected(0, Outcome.ERROR, "SyntaxError in line 1")},
    ),
)
