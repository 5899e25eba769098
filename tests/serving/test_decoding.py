import asyncio
import os
import sys
import threading

import pytest
from convoy.serving import decoding
from convoy.serving.decoding import Decoders, check_thread


def run(function, size, **options):
    decoders = Decoders()
    try:
        return asyncio.run(decoders.run(function, size, **options))
    finally:
        decoders.close()


def test_small_requests_are_decoded_in_the_event_loop():
    assert run(threading.current_thread, decoding.INLINE_BYTES) is threading.main_thread()


@pytest.mark.parametrize(
    ("expensive", "first"), [(False, ["", "convoy-decode"]), (True, ["convoy-decode-text"])]
)
def test_a_request_with_a_large_image_starts_again_in_the_thread_for_these(expensive, first):
    threads = []

    def decode():
        threads.append(threading.current_thread().name.rpartition("_")[0])
        check_thread(decoding.CHEAP_PIXELS + 1)
        return "decoded"

    assert run(decode, 10, expensive=expensive) == "decoded"
    assert threads == [*first, "convoy-decode-image"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads have no priorities")
def test_large_images_take_the_time_that_others_leave():
    def niceness():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def of_a_large_image():
        check_thread(decoding.CHEAP_PIXELS + 1)
        return niceness()

    own, large = niceness(), 1 << 20
    # A thread that holds the interpreter's lock must not wait for a core.
    assert run(niceness, large) == run(niceness, large, expensive=True) == own
    assert run(of_a_large_image, large) == min(19, own + decoding.IMAGE_NICENESS)
    assert niceness() == own
