"""A cluster in a box: hosts that are network namespaces with shaped links, and workers with a share of a core."""
