"""Executes step plans on one device: precision choice, slot table, inputs, forward, sampling."""
