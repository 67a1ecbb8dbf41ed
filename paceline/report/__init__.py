"""What records show: found on disk, put into tables, drawn, written as one page. Loads no torch."""
