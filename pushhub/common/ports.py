"""Which TCP ports a push endpoint may use. Both configuration and push check this."""

from __future__ import annotations

WEB_PORTS = {"http": 80, "https": 443}
#: Ports above 1023 of services that a forged request could harm. Below 1024, only 80 and 443 are allowed.
DENIED_PORTS = frozenset(
    {
        *(1080, 1433, 1434, 1521, 1719, 1720, 1723, 2049, 2181, 2375, 2376, 2379, 2380, 3128, 3306, 3389, 3659, 4045),
        *(4190, 4369, 5060, 5061, 5432, 5672, 5900, 5984, 6000, 6379, 6380, 6443, 6566, 6665, 6666, 6667, 6668, 6669),
        *(6697, 7000, 7001, 8500, 9042, 9092, 9200, 9300, 10080, 10250, 10255, 11211, 15672, 26379, 27017, 50070),
    }
)
FIRST_FREE_PORT = 1024


def is_port_allowed(port: int, allowed: frozenset[int]) -> bool:
    """Whether an endpoint may use the port. `allowed` are ports that a setting permits in spite of the rule."""
    if port in allowed or port in WEB_PORTS.values():
        return True
    return port >= FIRST_FREE_PORT and port not in DENIED_PORTS
