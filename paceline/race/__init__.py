"""Races: which contender is faster, and with what confidence."""
