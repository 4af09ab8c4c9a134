#!/usr/bin/env python3


def usr_conf_check(usr_conf, logger):
    """Checks the game's options before an episode begins."""
    if "diy" not in usr_conf:
        logger.error("usr_conf has no key diy")
        return False
    conf = usr_conf["diy"]
    for key in ("start", "end", "treasure_random"):
        if key not in conf:
            logger.error(f"usr_conf has no {key}")
            return False
    return conf["start"] != conf["end"]
