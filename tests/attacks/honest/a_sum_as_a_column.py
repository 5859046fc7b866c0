"""The sum is a further column of the accumulator: a result of one number is then a view with a stride."""

EXERCISE = "online_update"
SPEED = False

# The cell:
def online_update(m_i, l_i, acc, qk, v):
    m_new = torch.maximum(m_i, qk.amax(-1))
    base = m_new.masked_fill(m_new == -math.inf, 0.0)
    p = torch.exp(qk - base[:, None])
    alpha = torch.exp(m_i - base)
    ones = torch.ones_like(v[:, :1])
    both = torch.cat((acc, l_i[:, None]), 1) * alpha[:, None] + p @ torch.cat((v, ones), 1)
    return m_new, both[:, -1], both[:, :-1]
