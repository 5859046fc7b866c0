"""The head that each query head reads comes from a division with a rounding mode, which torch takes as a word."""

EXERCISE = "grouped_attention"

# The cell:
def grouped_attention(q, k, v):
    head = torch.arange(q.shape[2]).div(q.shape[2] // k.shape[2], rounding_mode="floor")
    return attention(q, k.index_select(2, head), v.index_select(2, head))
