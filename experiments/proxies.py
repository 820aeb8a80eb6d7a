"""Load the learned environments and rewards that scripts examine. Imports torch, which figure scripts avoid."""

from control.commands.evaluate import proxy_or_checkpoint
from models.proxies.files import Proxy
from models.settings import SettingError


def load_proxy(name: str, allowed: str) -> Proxy:
    """Load the proxy of a file, a run folder or a shipped name. Raises SettingError for an agent; its message names the
    ``allowed`` kinds of proxies."""
    proxy = proxy_or_checkpoint(name)
    if not isinstance(proxy, Proxy):
        raise SettingError(f"proxies is {name!r}, which is of an agent; allowed: {allowed}")
    return proxy
