"""Membership when members come and go: protocol, journal, coordinator."""
