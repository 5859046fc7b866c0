"""What is done to kernels beside a student's code. Copied into the sandbox: see `autograder.isolation.worker`."""
