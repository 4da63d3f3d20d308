"""What a trainer asks of the server that makes its rollouts: to pause, to sleep, to take other weights."""
