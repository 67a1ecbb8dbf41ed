"""Races as files, one per published system: `paceline race --suite NAME`."""
