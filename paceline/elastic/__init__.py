"""Who is in the group when members come and go: protocol, journal, coordinator."""
