"""Pipeline runners: stage programs, and the schedule that starts them."""
