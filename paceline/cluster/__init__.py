"""Launch worker processes on this machine, on other hosts, or on the hosts of a lab."""
