"""Measures copies: `measuring` opens the doors, `session` takes job after job, `watched` is its child."""
