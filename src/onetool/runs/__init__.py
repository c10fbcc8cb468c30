"""Durable runs: their journal, approvals of their calls, and replay after a restart."""
