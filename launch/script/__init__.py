"""What the user's own training script calls: the strategy of the plan, and the report of its steps."""
