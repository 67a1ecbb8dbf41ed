"""What a verb does: it takes values, starts what is needed and returns values; cli/ parses and prints."""
