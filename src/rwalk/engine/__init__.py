"""R runs as one program: the loop, how a step is executed, what is measured and what is kept."""
