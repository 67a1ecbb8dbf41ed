"""A cluster on one machine: hosts are network namespaces with shaped links, workers get a share of a core."""
