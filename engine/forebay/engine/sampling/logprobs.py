"""Log probabilities that clients are told.

They are the log-softmax of the model's own logits, before penalties, bias, masks, temperature and filters: what the
model thinks, whatever the request does with it. A token can thus be reported that could not have been drawn.
"""

import numpy as np

from forebay.engine.plan import TokenLogprobs
from forebay.engine.sampling.largest import FloatArray, in_order, largest


def token_logprobs(logits: FloatArray, token: int, top: int) -> TokenLogprobs:
    """Log probability of `token` and of the `top` likeliest, from the model's logits [vocab]."""
    best = logits.max()
    normaliser = float(best) + float(np.log(np.exp(logits - best).sum(dtype=np.float64)))
    if top == 0:
        return TokenLogprobs(float(logits[token]) - normaliser, ())
    ids = largest(logits, top)
    ids = in_order(logits[ids], ids)
    values = logits[ids].astype(np.float64) - normaliser
    return TokenLogprobs(float(logits[token]) - normaliser, tuple(zip(ids.tolist(), values.tolist(), strict=True)))
