"""The measurements of a run: times, memory and traffic of its ranks, made into a record."""
