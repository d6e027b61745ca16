"""``headrace topics``: the topics, their settings and their record types."""

from typing import TYPE_CHECKING, Any

import click

from headrace.deploy.terminal import print_json, print_lines

if TYPE_CHECKING:
    from headrace.schemas.model import Record
    from headrace.schemas.topics import Topic


ARRAYS = (
    "token ids, log-probabilities, loss mask: base64 of little-endian int32, float32, int8; compressed by zstd before "
    "base64 if the text starts with zstd:"
)


@click.command("topics")
@click.argument("name", required=False)
@click.option("--create", is_flag=True, help="Create the topics that the broker lacks.")
@click.option("--alter", is_flag=True, help="Give existing topics, or NAME, these settings, and keep all others.")
@click.option("--replication", default=-1, metavar="N", help="Replication factor for --create; default: the cluster's.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    name: str | None, create: bool, alter: bool, replication: int, kafka: str | None, data: str | None, as_json: bool
) -> None:
    """Print a summary of every topic, or a full description of topic NAME.

    A summary shows key, partitions, retention and types; a full description adds headers, fields and examples.

    \b
      headrace topics                          a summary of every topic
      headrace topics rewards                  headers, all fields with their meanings, an example record
      headrace topics rewards --json | jq '.types[0].example.value'
      headrace topics --create                 create the topics that the broker lacks
      headrace topics --alter                  retention, size and clock of existing topics, as declared
      headrace topics rewards --alter          the same for one topic
    """

    from headrace.schemas.topics import TOPICS, topic_named

    topic = None
    if name is not None:
        try:
            topic = topic_named(name)
        except KeyError as error:
            raise click.BadParameter(str(error.args[0])) from error
    created: list[str] = []
    if create:
        from headrace.deploy.kafka.run import run_with_kafka
        from headrace.deploy.stack.state import address_of
        from headrace.schemas.kafka.topic_creation import create_topics

        bootstrap = address_of("kafka", kafka, data)

        async def make() -> list[str]:
            return await create_topics(bootstrap, replication=replication)

        created = run_with_kafka(bootstrap, make)
    if alter:
        from headrace.deploy.kafka.run import run_with_kafka
        from headrace.deploy.stack.state import address_of
        from headrace.schemas.kafka.topic_settings import alter_topics

        bootstrap = address_of("kafka", kafka, data)
        altered = TOPICS if topic is None else (topic,)
        changes = run_with_kafka(bootstrap, lambda: alter_topics(bootstrap, altered))
        print_lines(
            f"{changed}: {setting} {before or 'default'} → {after}"
            for changed, settings in changes.items()
            for setting, (before, after) in settings.items()
        )
        if not changes:
            print_lines(["all existing topics have these settings"])
        return
    if topic is not None:
        shown = described(topic) | {"created": topic.name in created}
        print_json(shown, indent=1) if as_json else print_lines(page(topic))
        return
    if as_json:
        settings = [_settings(topic) | {"created": topic.name in created} for topic in TOPICS]
        print_json(settings, indent=1)
        return
    for topic in TOPICS:
        first, *rest = summary(topic)
        print_lines([first + ("  (created)" if topic.name in created else ""), *rest])


def summary(topic: "Topic") -> list[str]:
    """Returns a topic in a few lines: what it contains, its settings, its types."""
    days = topic.retention_ms // 86_400_000
    kept = "kept forever" if topic.retention_ms < 0 else f"kept {days} days"
    if topic.compacted:
        kept = "the newest record of each key is kept"
    settings = f"key {topic.key}, {topic.partitions} partition(s), {kept}, ≤ {topic.max_bytes >> 20} MiB per record"
    types = [f"    {model.TYPE}  {_about(model)}" for model in topic.models]
    return [f"{topic.name}: {topic.about}", f"    {settings}", *types]


def page(topic: "Topic") -> list[str]:
    """Returns the full description of a topic: settings, headers, and each type with its fields and an example."""
    import json
    import textwrap

    from headrace.schemas.examples import EXAMPLES
    from headrace.schemas.fields import enums, fields
    from headrace.schemas.headers import HEADERS

    lines = [*summary(topic)[:2], "    fields in [brackets] are optional; unknown fields may appear", f"    {ARRAYS}"]
    lines += ["", "headers (CloudEvents 1.0, Kafka's binary binding; values are UTF-8)"]
    lines += _columns([(header, shape["description"]) for header, shape in HEADERS.items()])
    for model in topic.models:
        lines += ["", f"{model.TYPE}  {_about(model)}"]
        described_fields = fields(model)
        lines += _columns(
            [
                (field.path, field.type if field.required else f"[{field.type}]", field.about)
                for field in described_fields
            ]
        )
        for name, values in enums(model).items():
            lines += textwrap.wrap(
                f"{name}: {' | '.join(values)}", 116, initial_indent="    ", subsequent_indent="        "
            )
        example = EXAMPLES[model.TYPE]
        message = example.message
        lines += ["", f"    an example, key {example.key}"]
        lines += _columns([(header, content.decode()) for header, content in message.headers], indent=8)
        value = json.dumps(json.loads(message.value), indent=1, ensure_ascii=False)
        lines += [f"        {line}" for line in value.splitlines()]
    return lines


def described(topic: "Topic") -> dict[str, Any]:
    """Returns the content of :func:`page` as JSON data."""
    import json
    from dataclasses import asdict

    from headrace.schemas.examples import EXAMPLES
    from headrace.schemas.fields import fields
    from headrace.schemas.headers import HEADERS

    types = []
    for model in topic.models:
        example = EXAMPLES[model.TYPE]
        message = example.message
        types.append(
            {
                "name": model.TYPE,
                "about": _about(model),
                "fields": [asdict(field) for field in fields(model)],
                "example": {
                    "key": example.key,
                    "headers": {header: content.decode() for header, content in message.headers},
                    "value": json.loads(message.value),
                },
            }
        )
    headers = {header: shape["description"] for header, shape in HEADERS.items()}
    return _settings(topic) | {"headers": headers, "types": types}


def _settings(topic: "Topic") -> dict[str, Any]:
    return {
        "name": topic.name,
        "key": topic.key,
        "partitions": topic.partitions,
        "retention_ms": topic.retention_ms,
        "compacted": topic.compacted,
        "max_bytes": topic.max_bytes,
        "types": [model.TYPE for model in topic.models],
        "about": topic.about,
    }


def _about(model: "type[Record]") -> str:
    return (model.__doc__ or "").strip().partition("\n")[0]


def _columns(rows: list[tuple[str, ...]], indent: int = 4) -> list[str]:
    """Returns ``rows`` aligned; a cell that is wider than its column pushes the rest of its row to the right."""
    widths = [min(34, max(len(row[column]) for row in rows)) for column in range(len(rows[0]) - 1)]
    return [
        " " * indent
        + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
