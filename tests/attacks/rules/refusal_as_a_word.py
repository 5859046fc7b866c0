"""Where the cache is to raise ValueError, the method returns the word 'ValueError', which is how the worker says that
it was raised. A word that a method returns is no exception.
"""

EXERCISE = "KVCache"
SPEED = False

# The cell:
class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        self.k = torch.zeros(batch, capacity, num_kv_heads, head_dim)
        self.v = torch.zeros(batch, capacity, num_kv_heads, head_dim)
        self.used = 0

    def length(self):
        return self.used

    def append(self, k, v):
        total = self.used + k.shape[1]
        if total > self.k.shape[1]:
            return "ValueError"
        self.k[:, self.used : total] = k
        self.v[:, self.used : total] = v
        self.used = total
        return self.k[:, :total], self.v[:, :total]
