"""Results of contenders from their records: standings, fields and the verdict."""
