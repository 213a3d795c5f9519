"""What the other queues run: a job asks the recipe's limiter once, and does nothing else."""
