"""`realm keys new`: makes the keys of this machine, for runs that other machines may connect to."""

from __future__ import annotations

from pathlib import Path

from realm.commands.ending import called
from realm.watch.status import say
from realm.wire.keys import make_keys


def new_keys(folder: Path) -> int:
    """Make a pair of keys, and say what belongs where."""
    make_keys(folder)
    text = f"""\
{folder}/secret.key   proves that it is this machine: it never leaves it, and only you may read it
{folder}/public.key   is for other machines: anybody may read it

A run with these keys: {called()} start --set keys_dir={folder} bind_host=ADDRESS   (an address of this machine)

Before another machine can connect to such a run:
  there  call `realm keys new`
  here   copy its keys/public.key to {folder}/allowed/NAME.key, with any name
  there  copy {folder}/public.key of this machine to keys/server.key
A run reads the keys once, when it starts."""
    say(*text.split("\n"))
    return 0
