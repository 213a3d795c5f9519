"""The composition root: the one place that builds adapters and puts them together.

May import: worker, producer, store, limiter, slack, settings, logs, core, server, errors, jsonio.
"""
