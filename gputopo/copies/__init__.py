"""What measured copies mean: which to make, what they should reach, who shares a link. Pure, values alone."""
