"""What a run saw: times, memory and traffic of its ranks, made into a record."""
