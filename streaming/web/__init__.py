"""The page of an operator: what is due when, how late messages leave, a look at messages, and what to do with them.

Read `server` first: the routes, and who may use which; then `history` (what the page has sampled), `selections`
(reading messages, and remembering a choice between its count and its action) and `actions` (cancel, deliver now,
postpone).
`static/` is what the browser loads; it needs no build.
"""
