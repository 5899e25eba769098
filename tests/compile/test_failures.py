from convoy.compile.failures import Shortage, find_shortage

GB = 10**9


def test_the_memory_that_is_missing_is_read_from_the_message_of_xla():
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 20.25G of 15.75G hbm. Exceeded hbm capacity by 4.50G."
    )
    available = round(15.75 * 2**30)
    assert find_shortage(RuntimeError(message), GB) == Shortage(round(20.25 * 2**30), available)
    message = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (26.67G) exceeds available HBM (15.75G)."
    )
    needed = round(26.67 * 2**30) + GB
    assert find_shortage(RuntimeError(message), GB) == Shortage(needed, available)
    assert find_shortage(RuntimeError("INTERNAL: something else"), GB) is None
