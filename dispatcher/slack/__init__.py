"""Posting to Slack: the sink, what its answers mean, and a local Slack to try it on."""
