"""The page at `/`, for people who open the address in a browser."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Fencegate</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
 body { font: 16px/1.6 system-ui, sans-serif; max-width: 46rem; margin: 4rem auto; padding: 0 1.5rem; color: #1c2430 }
 h1 { font-size: 1.9rem; margin-bottom: .2rem } h1 + p { color: #56606e; margin-top: 0 }
 pre { background: #f4f6f8; border: 1px solid #e3e7ec; border-radius: 8px }
 pre { padding: 1rem; overflow-x: auto; font-size: .8rem }
 a { color: #0b62c4 } li { margin: .2rem 0 }
 @media (prefers-color-scheme: dark) {
  body { background: #12161c; color: #e4e8ee } h1 + p { color: #9aa4b2 } a { color: #6cb0ff }
  pre { background: #1a2029; border-color: #2a323d } }
</style></head><body>
<h1>Fencegate</h1>
<p>A lock tells <em>you</em> that you may write. A fence tells the <em>resource</em> that you may not.</p>
<pre>%s</pre>
<ul>
%s
</ul>
</body></html>
"""

_ACQUIRE = """curl -X POST "$FENCEGATE/v1/locks/%s/acquire" -d '{"ttlMillis": 30000}'"""
_WRITE = """curl -X PUT  "$FENCEGATE/v1/resources/%s" -H 'Fencing-Token: …' -d '%s'"""

_DOCS = ' <li><a href="/docs">/docs</a>: every call, to try out</li>'
_LOCKS = ' <li><a href="/v1/locks">/v1/locks</a>: the locks that are held now</li>'
_HEALTH = ' <li><a href="/readyz">/readyz</a> and <a href="/livez">/livez</a>: health</li>'


def page(*, locks: bool, resources: bool, documents: bool) -> str:
    """Of what is served here, and no more; `documents`: any is taken at `rows/cart`, under a lock of its own."""
    lock, key, body = ("rows:cart", "rows/cart", '{"items": 3}') if documents else ("LOCK", "RESOURCE/KEY", "…")
    calls = [_ACQUIRE % lock] * locks + [_WRITE % (key, body)] * resources
    links = [_DOCS] + [_LOCKS] * locks + [_HEALTH]
    return _PAGE % ("\n".join(calls), "\n".join(links))
