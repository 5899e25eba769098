"""One pure step and the wrappers around it: data flows from feed to loop to metrics."""
