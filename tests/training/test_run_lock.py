"""The lock on the folder of a run."""

import multiprocessing
import os
import time

import pytest

from diffusers_text_nfdm.training.run_lock import LOCK_FILE, RunLock, check_free, content, take


FORK = multiprocessing.get_context("fork")


def hold(run, ready):
    """Hold the folder, in a session of its own."""
    os.setsid()
    lock = take(run, {})
    # A worker that does not notice the end of its parent.
    FORK.Process(target=time.sleep, args=(60,)).start()
    ready.set()
    time.sleep(600)
    lock.release()


def test_a_lock_has_one_holder_and_names_it(tmp_path):
    run = tmp_path / "new" / "run"
    lock = take(run, content(run))
    with pytest.raises(ValueError, match=f"{run} is in use by process {os.getpid()} on "):
        check_free(run)
    lock.release()
    check_free(run)
    assert content(run) == {} and (run / LOCK_FILE).is_file()


def test_a_lock_does_not_outlive_a_killed_owner_even_where_its_workers_do(tmp_path):
    ready = FORK.Event()
    owner = FORK.Process(target=hold, args=(tmp_path, ready))
    owner.start()
    try:
        assert ready.wait(600)
        with pytest.raises(ValueError, match=f"in use by process {owner.pid} on "):
            RunLock(tmp_path)
        owner.kill()
        owner.join()
        time.sleep(0.1)
        RunLock(tmp_path).release()
    finally:
        os.killpg(owner.pid, 9)


def test_a_folder_that_changed_meanwhile_is_not_taken(tmp_path):
    before = content(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="Another process has written into"):
        take(tmp_path, before)
    check_free(tmp_path)
