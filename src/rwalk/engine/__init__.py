"""R runs as one program: the loop, the execution of a step, the measurements and the stored state."""
