"""The worker: takes batches, dispatches them, posts, and sleeps without polling. To the outside an RQ worker."""
