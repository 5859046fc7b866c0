"""What `mla-course submission` puts around a student's cells: the names of the notebook, and what is called."""

# %% in front
emulated = False  # the competition runs kernels on a GPU


# %% behind
def custom_kernel(data):
    """Return the layer's output and the cache's buffer, as the competition's task says. The cache's length stays."""
    config, x, kv_cache = data
    weights = (
        config.Q_proj_down_weight,
        config.Q_proj_up_weight,
        config.KV_proj_down_weight,
        config.KV_proj_up_weight,
        config.wo_weight,
    )
    out, _ = challenge_step(x, kv_cache.data, kv_cache.seq_len, *weights, config.n_heads)
    return out, kv_cache.data
