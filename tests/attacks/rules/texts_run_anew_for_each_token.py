"""Runs each text anew from its beginning for every token: the cache is made and thrown away."""

EXERCISE = "generate_texts"
SPEED = False
EXPECT = "more tokens than the texts have"

# The cell:
def generate_texts(model, prompts, new, chunk, stop):
    found = []
    for prompt in prompts:
        row = list(prompt)
        while len(row) < len(prompt) + new and (row[-1] != stop or len(row) == len(prompt)):
            cache = make_cache(model, 1, len(row))
            for start in range(0, len(row), chunk):
                part = torch.tensor([row[start : start + chunk]])
                S = part.shape[1]
                logits = run(model, part, (start + torch.arange(S))[None], torch.tensor([S]), cache)
            row.append(int(choose_tokens(logits, torch.tensor([S]))))
        row = row[len(prompt):]
        found.append(row + [-1] * (new - len(row)))
    return torch.tensor(found)
