"""What each exercise checks: one module a notebook, one function an exercise."""
