"""Sluiceway: an asynchronous gateway for expensive, rate-limited AI models."""
