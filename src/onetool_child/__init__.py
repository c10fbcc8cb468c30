"""What runs outside the server: cells, workers and the zygote that forks them. The standard library only."""
