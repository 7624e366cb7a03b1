"""Parts that model families share: rotary frequencies and fused projections."""
