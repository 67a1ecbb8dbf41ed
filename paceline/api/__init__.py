"""The library behind `import paceline`: join and wrap, collectives, windows, and a comm hook for DDP."""
