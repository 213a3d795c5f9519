"""Posts to Slack and reads back: the sink, what Slack's answers mean, and what is left out when it refuses.

May import: core, errors, jsonio, logs.
"""
