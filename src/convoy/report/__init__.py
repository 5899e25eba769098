"""Recording of runs, analysis of compiled programs, and the report as an HTML page."""
