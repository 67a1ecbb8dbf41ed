"""What records of contenders show: standings, fields and the verdict."""
