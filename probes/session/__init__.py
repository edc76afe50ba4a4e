"""Measures copies: `measuring` opens the doors, `session` takes job after job, `engine` is what copies."""
