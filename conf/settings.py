"""One typed, validated, frozen value that says how a deployment runs.

`conf.sections` and `conf.topic_tables` have each setting with its bounds and default, and `conf.setting_checks` what
several must fulfil together. `conf.load` reads them from the file, the environment and the command line, and adds key,
value and origin to an error.
"""

from __future__ import annotations

from typing import Any

from pydantic import model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from conf.sections import (
    BucketSettings,
    CancelSettings,
    ClockSettings,
    ForwardSettings,
    HeaderSettings,
    JarSettings,
    KafkaSettings,
    LeaseSettings,
    LevelSettings,
    LimitSettings,
    MonitorSettings,
    ReleaseSettings,
    SparkSettings,
    StorageSettings,
    TopicSettings,
    WebSettings,
    WindowSettings,
)
from conf.setting_checks import (
    wrong_policies,
    wrong_ports,
    wrong_storage,
    wrong_tables,
    wrong_times,
    wrong_topics,
)
from conf.setting_types import ApplicationId
from conf.topic_tables import PolicySettings, PresetSettings, RateSettings

# The internal topics, in the order of `Settings.own_topics`.
_OWN_TOPICS = ("progress", "lease", "ready", "position", "near", "claims", "recalled")
# How the internal topics of any application end by default.
INTERNAL_SUFFIXES = tuple(f"-{key}" for key in _OWN_TOPICS)


class Settings(BaseSettings):
    """All settings of a deployment, made by `conf.load.load_settings`. Durations are in ms."""

    # `read_list` decodes lists, the same way for every source; pydantic-settings would read JSON only.
    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        case_sensitive=True,
        enable_decoding=False,
        env_prefix="DELAYLINE_",
        env_nested_delimiter="__",
        env_nested_max_split=1,
    )

    application_id: ApplicationId = "delayline"
    kafka: KafkaSettings = KafkaSettings()
    topics: TopicSettings = TopicSettings()
    storage: StorageSettings = StorageSettings()
    limits: LimitSettings = LimitSettings()
    clock: ClockSettings = ClockSettings()
    cancels: CancelSettings = CancelSettings()
    bucket: BucketSettings = BucketSettings()
    window: WindowSettings = WindowSettings()
    release: ReleaseSettings = ReleaseSettings()
    forward: ForwardSettings = ForwardSettings()
    lease: LeaseSettings = LeaseSettings()
    monitor: MonitorSettings = MonitorSettings()
    web: WebSettings = WebSettings()
    headers: HeaderSettings = HeaderSettings()
    levels: LevelSettings = LevelSettings()
    policies: PolicySettings = PolicySettings()
    presets: PresetSettings = PresetSettings()
    rates: RateSettings = RateSettings()
    jars: JarSettings = JarSettings()
    spark: SparkSettings = SparkSettings()

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let `Settings(...)` read only its arguments; `load_settings` reads the environment."""
        return (init_settings,)

    @property
    def results_topic(self) -> str:
        """The topic of the answers to cancels."""
        return self.topics.results or f"{self.application_id}-results"

    @property
    def progress_topic(self) -> str:
        """The compacted topic that holds, for each shard, how far its delivery is committed."""
        return f"{self.application_id}-progress"

    @property
    def lease_topic(self) -> str:
        """The compacted topic of the lease. Its newest record names the process that may deliver and seal."""
        return f"{self.application_id}-lease"

    @property
    def ready_topic(self) -> str:
        """The topic in which batches stage messages, in a partition for each shard."""
        return f"{self.application_id}-ready"

    @property
    def position_topic(self) -> str:
        """The compacted topic that holds, for each shard, how far it is released."""
        return f"{self.application_id}-position"

    @property
    def near_topic(self) -> str:
        """The topic in which forwarders stage messages that are due soon, in a partition for each shard."""
        return f"{self.application_id}-near"

    @property
    def claims_topic(self) -> str:
        """The topic in which forwarders claim what they take: the first partition has the terms, the others a lane."""
        return f"{self.application_id}-claims"

    @property
    def recalled_topic(self) -> str:
        """The compacted topic of the messages that release processes have recalled.

        Partition 0 says from where on it knows them. Each shard has one of the other partitions.
        """
        return f"{self.application_id}-recalled"

    @property
    def own_topics(self) -> tuple[str, ...]:
        """The internal topics, which only the service may write to."""
        return (
            self.progress_topic,
            self.lease_topic,
            self.ready_topic,
            self.position_topic,
            self.near_topic,
            self.claims_topic,
            self.recalled_topic,
        )

    @model_validator(mode="after")
    def _fitting(self) -> Settings:
        own, results = dict(zip(_OWN_TOPICS, self.own_topics, strict=True)), self.results_topic
        wrong = [
            *wrong_topics(self.topics, results, own),
            *wrong_tables(self.topics, results, self.policies, self.presets, self.rates),
            *wrong_policies(self.policies),
            *wrong_times(self.clock, self.release),
            *wrong_ports(self.monitor, self.web, self.release.processes, self.forward.processes),
            *wrong_storage(self.storage, self.spark),
        ]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self
