"""The inference engine: an API process, and a core process with the scheduler and the runner."""
