"""Each append makes new tensors and copies all tokens that are held, without the word that is forbidden for that."""

EXERCISE = "KVCache"
SPEED = False
EXPECT = "bytes in this case"

# The cell:
class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        self.capacity, self.parts = capacity, []
        self.shape = batch, num_kv_heads, head_dim

    def length(self):
        return sum(k.shape[1] for k, _ in self.parts)

    def append(self, k, v):
        total = self.length() + k.shape[1]
        if total > self.capacity:
            raise ValueError("the tokens do not all fit")
        self.parts.append((k.clone(), v.clone()))
        batch, heads, width = self.shape
        out = tuple(torch.zeros(batch, total, heads, width) for _ in range(2))
        at = 0
        for part in self.parts:
            for whole, piece in zip(out, part):
                whole[:, at : at + piece.shape[1]] = piece
            at += part[0].shape[1]
        return out
