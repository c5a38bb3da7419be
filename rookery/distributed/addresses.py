"""Where process 0 of a run over several processes is found: `HOST:PORT`, taken apart and looked up."""

import contextlib
import ipaddress
import socket
import time
from typing import Any

_TICK = 0.2  # seconds between questions to a name service that is away


class DoorError(ValueError):
    """The processes of a run did not come together; the message is one sentence with the remedy."""


def host_and_port(address: str) -> tuple[str, int]:
    """Takes `HOST:PORT` apart; an IPv6 address stands in brackets, `[::1]:1234`, and comes back without them.

    Raises:
      DoorError: it is no such address, or the port is not within 1 to 65535.
    """
    host, _, digits = address.rpartition(":")
    valid = digits.isascii() and digits.isdigit() and len(digits) <= 5 and 1 <= int(digits) <= 65535
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        valid = valid and ":" in host and is_number(host)
    else:
        valid = valid and host != "" and not set(host) & set(":/@[] \t\n")
    if not valid:
        raise DoorError(
            f"the coordinator {address!r} is not HOST:PORT: give a name or number and a port from 1 to 65535, "
            "such as node1:1234, 10.0.0.1:1234 or [::1]:1234"
        )
    return host, int(digits)


def is_number(host: str) -> bool:
    """Whether a host is given by its IP address."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def resolve(host: str, port: int, deadline: float) -> list[tuple[int, Any]]:
    """Families and socket addresses of a host, in the order to try.

    Args:
      deadline: until when (`time.monotonic`) a name service that is away for now is asked again.

    Raises:
      DoorError: nobody knows this host.
    """
    while True:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return [(family, place) for family, _, _, _, place in found]
        except (socket.gaierror, UnicodeError) as error:
            away = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
            if not away or time.monotonic() + _TICK > deadline:
                raise DoorError(
                    f"this machine ({socket.gethostname()}) cannot resolve the host {host!r} ({reason(error)}): "
                    "correct --coordinator, or give the number of the host where process 0 runs"
                ) from error
        time.sleep(_TICK)


def reason(error: Exception) -> str:
    """What an error of the operating system says, without its number."""
    return (getattr(error, "strerror", None) or str(error)).lower()
