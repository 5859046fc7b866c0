"""Runs each text anew for each token, with a copy of the model that has no limit. The tokens are counted beside the model."""

EXERCISE = "generate_texts"
SPEED = False
EXPECT = "tokens of a text in one run"

# The cell:
def generate_texts(model, prompts, new, chunk, stop):
    """Each text is run anew, whole, for each of its tokens."""
    free = {k: v for k, v in model.items() if k in ("embed", "layers", "norm", "head")}  # neither "left" nor "most"
    found = torch.full((len(prompts), new), -1)
    for b, prompt in enumerate(prompts):
        text = list(prompt)
        for n in range(new):
            cache = make_cache(free, 1, len(text))
            tokens = torch.tensor([text])
            lengths = torch.tensor([len(text)])
            logits = run(free, tokens, torch.arange(len(text))[None], lengths, cache)
            token = int(choose_tokens(logits, lengths)[0])
            found[b, n] = token
            text.append(token)
            if token == stop:
                break
    return found
