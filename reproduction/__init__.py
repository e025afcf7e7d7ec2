"""Each table and figure of the paper, as data with the published values, and how to regenerate them."""
