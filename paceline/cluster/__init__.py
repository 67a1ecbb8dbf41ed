"""Launching: worker processes, hosts of a lab, and the resources of this machine."""
