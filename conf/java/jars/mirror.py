"""Ivy's settings for a mirror of Maven Central, with a login if the mirror wants one."""

from __future__ import annotations

import base64
import re
from email.message import Message
from http.client import HTTPException
from typing import IO
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from conf.errors import JarsMissing
from conf.java.jars.jar_lock import list_of
from conf.secrets import without_login

_ANSWER_TIMEOUT_S = 60
_REFUSED = (401, 403)
_SETTINGS = """<ivysettings>
  <settings defaultResolver="mirror"/>
  <credentials realm={realm} host={host} username={user} passwd={password}/>
  <resolvers><ibiblio name="mirror" m2compatible="true" root={root}/></resolvers>
</ivysettings>
"""


def ivy_settings(mirror: str, group: str) -> str:
    """Return Ivy's settings for a mirror that is to have the jars of `group`.

    Raises SparkUnsupported, and JarsMissing if the mirror refuses the login, or wants one.
    """
    # Ivy's messages contain the URL of each file, so the URL must not contain the login.
    url, root = urlsplit(mirror), without_login(mirror)
    user, password = unquote(url.username or ""), unquote(url.password or "")
    values = {
        "root": root,
        "realm": _realm(root, user, password, group) if url.scheme.startswith("http") else "",
        "host": url.hostname or "",
        "user": user,
        "password": password,
    }
    return _SETTINGS.format(**{name: quoteattr(value) for name, value in values.items()})


def _realm(root: str, user: str, password: str, group: str) -> str:
    """Return what the mirror calls the realm of its logins; "" if it wants none.

    Ivy sends a login only to a realm that it has by name, and what it may not read it reports as not found. So the
    first file that it will want is asked for here.
    """
    entry = next(ElementTree.parse(list_of(group)).iter("dependency")).attrib  # noqa: S314 -- a file of the package.
    name, revision = entry["name"], entry["rev"]
    file = f"{root.rstrip('/')}/{entry['org'].replace('.', '/')}/{name}/{revision}/{name}-{revision}.pom"
    challenge = _refusal(file, {})
    if challenge is None:
        return ""
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    if _refusal(file, {"Authorization": f"Basic {basic}"}) is not None:
        what = "this login" if user else "requests without a login: write https://user:password@host/"
        raise JarsMissing(f"the mirror {root} refuses {what}")
    realm = re.search(r'realm="([^"]*)"', challenge)
    return realm[1] if realm else ""


def _refusal(url: str, headers: dict[str, str]) -> str | None:
    """Return the challenge of a server that refuses the request. Ivy reports all other failures."""
    request = Request(url, headers=headers)  # noqa: S310 -- http or https.
    try:
        with build_opener(_Redirects).open(request, timeout=_ANSWER_TIMEOUT_S):
            return None
    except HTTPError as answer:
        return answer.headers.get("WWW-Authenticate", "") if answer.code in _REFUSED else None
    # HTTPException: the answer is not HTTP. ValueError: the target of a redirect is not a URL.
    except (OSError, HTTPException, ValueError):
        return None


class _Redirects(HTTPRedirectHandler):
    """Follows redirects. The login is the mirror's, and no other server's, such as one that stores its files."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        """Return the next request, if any."""
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if redirected is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            redirected.remove_header("Authorization")
        return redirected
