"""The cache keeps a list of views, one a token, of what it allocated once, and refuses what does not fit by ValueError."""

EXERCISE = "KVCache"
SPEED = False

# The cell:
class KVCache:
    def __init__(self, batch, capacity, num_kv_heads, head_dim):
        self.both = [torch.empty(batch, capacity, num_kv_heads, head_dim) for _ in range(2)]
        self.free = [list(each.unbind(1)) for each in self.both]
        self.taken = []

    def length(self):
        return len(self.taken)

    def append(self, k, v):
        if k.shape[1] > len(self.free[0]):
            raise ValueError("the tokens do not all fit")
        for token in range(k.shape[1]):
            places = [slots.pop(0) for slots in self.free]
            for place, new in zip(places, (k, v)):
                place.copy_(new[:, token])
            self.taken.append(places)
        return tuple(each[:, : len(self.taken)] for each in self.both)
