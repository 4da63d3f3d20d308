"""Items of other threads come to the event loop, which is woken once for all of them."""

from __future__ import annotations

import asyncio
import threading

from jaxengine.front.mailbox import Mailbox


def test_items_of_threads_come_in_order_and_wake_the_loop_once() -> None:
    async def go() -> list[list[int]]:
        looks: list[list[int]] = []
        done = asyncio.Event()

        def look() -> None:
            looks.append(list(mailbox.take_all()))
            done.set()

        mailbox: Mailbox[int] = Mailbox(asyncio.get_running_loop(), look)

        def hand_over() -> None:
            for item in range(100):
                mailbox.put(item)

        thread = threading.Thread(target=hand_over)
        thread.start()
        thread.join()  # the loop did not run meanwhile
        await done.wait()
        done.clear()
        mailbox.put(100)
        await done.wait()
        return looks

    assert asyncio.run(go()) == [list(range(100)), [100]]


def test_what_comes_while_it_looks_is_taken_or_wakes_it_again() -> None:
    async def go() -> list[int]:
        taken: list[int] = []

        def look() -> None:
            for item in mailbox.take_all():
                taken.append(item)
                if item == 1:
                    mailbox.put(2)

        mailbox: Mailbox[int] = Mailbox(asyncio.get_running_loop(), look)
        mailbox.put(1)
        await asyncio.sleep(0.01)
        mailbox.put(3)
        await asyncio.sleep(0.01)
        return taken

    assert asyncio.run(go()) == [1, 2, 3]


def test_it_looks_again_when_asked_and_once() -> None:
    async def go() -> int:
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1
            assert list(mailbox.take_all()) == []

        mailbox: Mailbox[int] = Mailbox(asyncio.get_running_loop(), look)
        mailbox.look_again()
        mailbox.look_again()
        await asyncio.sleep(0.01)
        return looks

    assert asyncio.run(go()) == 1


def test_a_closed_loop_is_not_told() -> None:
    loop = asyncio.new_event_loop()
    mailbox: Mailbox[int] = Mailbox(loop, lambda: None)
    loop.close()
    mailbox.put(1)
    assert list(mailbox.take_all()) == [1]
