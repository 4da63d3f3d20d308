"""What recurrent ops share: how they go through the rows of a step, and kernels for a recurrence of either kind."""
