"""Options that do not go together: tables of rules, and what checks a run's spec against them."""
