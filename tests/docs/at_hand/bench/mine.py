from convoy.bench import register_custom_metric

register_custom_metric("lines", lambda stdout, stderr, exit_status: len(stdout.splitlines()))
