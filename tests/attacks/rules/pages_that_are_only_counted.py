"""No pages and no pool: each sequence lies in a tensor of its own, and the page numbers are only counted."""

EXERCISE = "BasicPagedCache"
SPEED = False
EXPECT = "torch's operations write"

# The cell:
class BasicPagedCache:
    def __init__(self, num_pages, page_size, R, Dr):
        self.page_size, self.free_pages = page_size, list(range(num_pages))
        self.none = torch.zeros(0, R), torch.zeros(0, Dr)
        self.num_pages, self.tables, self.held = num_pages, {}, {}

    def used_pages(self):
        return self.num_pages - len(self.free_pages)

    def table(self, sequence):
        return list(self.tables.get(sequence, []))

    def append(self, sequence, c_kv, k_rope):
        a, b = self.held.get(sequence, self.none)
        needed = -(-(len(a) + len(c_kv)) // self.page_size) - len(self.table(sequence))
        if needed > len(self.free_pages):
            raise ValueError("full")
        self.tables[sequence] = self.table(sequence) + [self.free_pages.pop() for _ in range(needed)]
        self.held[sequence] = torch.vstack([a, c_kv]), torch.vstack([b, k_rope])

    def read(self, sequence):
        return tuple(x.clone() for x in self.held.get(sequence, self.none))

    def free(self, sequence):
        if not len(self.held.get(sequence, self.none)[0]):
            raise ValueError("nothing")
        self.free_pages += self.tables.pop(sequence)
        del self.held[sequence]
