"""Whether there is an accelerator is asked once, and anew in a forked child."""

import os

import pytest
import torch

from flashgp.foundations.machine import accelerator, ask_again, give_up_accelerator, using_accelerator


def test_the_system_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(asked.append(1)) or True)
    with using_accelerator(None):
        ask_again()
        assert accelerator() == accelerator() == torch.device("cuda")
        assert len(asked) == 1
        give_up_accelerator()
        assert accelerator() is None
        ask_again()
        assert accelerator() == torch.device("cuda")
        monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
        ask_again()
        assert accelerator() is None, "a child cannot use the device of its parent"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_asks_anew() -> None:
    with using_accelerator(torch.device("meta")):
        child = os.fork()
        if not child:
            os._exit(0 if accelerator() != torch.device("meta") else 1)
        assert accelerator() == torch.device("meta")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
