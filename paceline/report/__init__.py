"""Present records: tables, charts, and one HTML page. Loads no torch."""
