"""From logits to token ids: counter-based noise, filters and selection."""
