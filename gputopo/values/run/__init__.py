"""The values of a run: plan, events, result, methods of reduction."""
