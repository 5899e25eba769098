"""Input data: from the user's arrays and datasets to chunks of batches on the devices."""
