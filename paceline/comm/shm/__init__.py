"""Collectives among ranks that can read each other's memory."""
