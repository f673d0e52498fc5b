"""Names of settings that do not exist, in a file and on the command line, and the nearest that does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conf.setting_failure import SECRET, failure


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[buckets]\nshards = 2", "buckets: unknown setting; did you mean bucket?"),
        ("[bucket]\nshard = 2", "bucket.shard: unknown setting; did you mean bucket.shards?"),
        ("[bucket]\nmax_delay = 2", "bucket.max_delay: unknown setting; did you mean policies.max_delay?"),
        ("applicationid = 'x'", "applicationid: unknown setting; did you mean application_id?"),
        (
            "[kafka]\n'security.protocl' = 'SSL'",
            "kafka.security.protocl: unknown setting; did you mean kafka.security",
        ),
        ("[kafka]\nbootstrap_server = 'a:1'", "did you mean kafka.bootstrap_servers"),
        ("[spark]\nmaster = 'local'", "[spark]: allowed is keys that begin with 'spark.'"),
        ("[presets]\n'delayline-in' = 'rabbit'", "[presets]: allowed is one or more of activemq, etf1, karafka"),
        ("[presets]\n'delayline-in' = ''", "[presets]: allowed is one or more of"),
        ("[presets]\n'delayline-in' = 'nats,nats'", "[presets]: allowed is one or more of"),
        ("[presets]\n'delayline-in' = '[[\"nats\"]]'", "[presets]: allowed is one or more of"),
        ("[presets]\n'orders' = 'nats'", "presets.orders: allowed are topics in topics.input"),
        ("[rates]\n'delayline-out' = 0", "[rates]: allowed is a whole number from 1 to"),
        ("[rates]\n'delayline-out' = 1.5", "for 'delayline-out'"),
        ("[rates]\n'delayline-out' = 'many'", "for 'delayline-out'"),
        ("[rates]\n'orders' = 1", "rates.orders: allowed are topics.output, topics.allowed_outputs"),
        ("[policies]\ndefault_delay = 'soon'", "policies.default_delay = 'soon': allowed is a duration"),
        ("[policies]\nover_max_delay = 'drop'", "policies.over_max_delay = 'drop': allowed is one of reject, clamp"),
        ("[policies]\nname_mode = 'first'", "policies.name_mode = 'first': allowed is one of replace, keep"),
        ("[policies]\nname_mode = ''", "policies.name_mode = '': allowed is one of replace, keep"),
        ("[policies]\nname_mode = 'Keep'", "policies.name_mode = 'Keep': allowed is one of replace, keep"),
        ("[policies]\nname_mode = 1", "policies.name_mode = 1: allowed is text"),
        ("[policies.delayline-in]\nname_mode = 'first'", "[policies]: allowed is for delayline-in.name_mode one of"),
        ("[policies]\ndelay = '1s'", "[policies]: allowed is default_delay, fixed_delay, max_delay, over_max_delay"),
        ("[policies.delayline-in]\ndelay = '1s'", "or a table of these for a topic, not 'delayline-in' ['delay']"),
        ("[policies.delayline-in]\nmax_delay = '-1s'", "[policies]: allowed is for delayline-in.max_delay a duration"),
        ("[policies]\nrepeats = 2", "policies.repeats = 2: allowed is true or false"),
        ("[policies]\nrepeats = []", "policies.repeats = []: allowed is true or false"),
        ("[policies.delayline-in]\nrepeats = 2", "[policies]: allowed is for delayline-in.repeats true or false"),
        ("[policies.delayline-in]\nrepeats = 'maybe'", "[policies]: allowed is for delayline-in.repeats true or false"),
        ("[policies]\nmax_waiting = 0", "policies.max_waiting = 0: allowed is a whole number from 1 to"),
        ("[policies.delayline-in]\nmax_waiting = 'few'", "[policies]: allowed is for delayline-in.max_waiting a whole"),
        ("[policies]\nfixed_delay = '367d'", "policies: default_delay and fixed_delay must not exceed"),
        ("[policies.delayline-in]\nmax_delay='1s'\nfixed_delay = '2s'", "policies.delayline-in: default_delay"),
        (
            "[policies]\nrepeats = true\nname_mode = 'keep-time'",
            'policies: repeats and name_mode = "keep-time" must not be set together',
        ),
        (
            "[policies]\nrepeats = true\n[policies.delayline-in]\nname_mode = 'keep-time'",
            'policies.delayline-in: repeats and name_mode = "keep-time" must not be set together',
        ),
        (
            "[policies]\nexpiry_header = 'until'\nname_mode = 'keep-time'",
            'policies: expiry_header and name_mode = "keep-time" must not be set together',
        ),
        ("[policies.orders]\nmax_delay = '1s'", "policies.orders: allowed are topics in topics.input"),
        ("[bucket]\nlimit = 500", "bucket.limit: unknown setting"),
    ],
)
def test_an_unknown_name_in_the_file_gets_the_nearest_known_one(toml: Any, text: str, names: str) -> None:
    assert names in failure(file=toml(text))


@pytest.mark.parametrize(
    "override", ["", "=x", "bucket.shards", "bucket shards=3", "bucket", f"kafka.sasl.password {SECRET}"]
)
def test_an_override_in_another_form_is_refused(override: str) -> None:
    assert "allowed is --set section.key=value" in failure(override)


@pytest.mark.parametrize("override", ["kafka=x", "shards=3", "nowhere.x=3", "bucket.shards.x=3", ".x=1", "bucket.=1"])
def test_an_override_of_an_unknown_setting_is_refused(override: str) -> None:
    assert override.partition("=")[0] in failure(override)
