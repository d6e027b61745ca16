"""``headrace topics``: what flows where."""

import click


@click.command("topics")
@click.option("--create", is_flag=True, help="Create the topics that the broker does not have.")
@click.option("--replication", default=-1, metavar="N", help="Of topics to create; else the cluster's default.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(create: bool, replication: int, kafka: str | None, data: str | None, as_json: bool) -> None:
    """Print each topic: key, partitions, retention, types; or create them."""
    import asyncio
    import json

    from headrace.schemas.topics import TOPICS

    created: list[str] = []
    if create:
        from headrace.deploy.kafka import wait_until_answers
        from headrace.deploy.state import address_of
        from headrace.schemas.log import create_topics

        bootstrap = address_of("kafka", kafka, data)

        async def make() -> list[str]:
            await wait_until_answers(bootstrap, 10.0)
            return await create_topics(bootstrap, replication=replication)

        created = asyncio.run(make())
    if as_json:
        shown = [
            {
                "name": topic.name,
                "key": topic.key,
                "partitions": topic.partitions,
                "retention_ms": topic.retention_ms,
                "max_bytes": topic.max_bytes,
                "types": [model.TYPE for model in topic.models],
                "about": topic.about,
                "created": topic.name in created,
            }
            for topic in TOPICS
        ]
        click.echo(json.dumps(shown, indent=1))
        return
    for topic in TOPICS:
        days = topic.retention_ms // 86_400_000
        kept = "kept for ever" if topic.retention_ms < 0 else f"kept {days} days"
        made = "  (created)" if topic.name in created else ""
        click.echo(f"{topic.name}: {topic.about}{made}")
        click.echo(
            f"    key {topic.key}, {topic.partitions} partition(s), {kept}, ≤ {topic.max_bytes >> 20} MiB a record"
        )
        for model in topic.models:
            about = (model.__doc__ or "").strip().partition("\n")[0]
            click.echo(f"    {model.TYPE}  {about}")
