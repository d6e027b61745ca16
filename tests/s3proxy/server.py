"""An S3 server for tests: S3Proxy on a folder. It checks signatures, knows conditional requests, parts and ranges."""

import asyncio
from pathlib import Path

from headrace.deploy.kafka.java import find_java
from headrace.deploy.system.children import Child, Command
from headrace.deploy.system.ports import HOST, free_port
from tests.built import by_maven

HERE = Path(__file__).parent
BUCKET = "headrace"
KEY, SECRET = "key-of-the-tests", "secret-of-the-tests"


class S3Server:
    """Can be ended and started again: it keeps its port and its objects."""

    def __init__(self, folder: Path) -> None:
        """A server with an empty bucket in ``folder``, not started yet."""
        self.objects = folder / "objects"
        """A folder a bucket, a file an object."""
        self.log = folder / "s3.log"
        """What it said."""
        self._port = free_port()
        (self.objects / BUCKET).mkdir(parents=True)
        settings = {
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.authorization": "aws-v4",
            "s3proxy.identity": KEY,
            "s3proxy.credential": SECRET,
            # Of a request whose body is signed as a whole, as obstore signs it.
            "s3proxy.v4-max-non-chunked-request-size": 128 * 1024**2,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": self.objects,
        }
        properties = folder / "s3.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        jars = by_maven(HERE, "s3proxy") / "libs"
        jvm = (
            find_java().program,
            "-Xmx512m",
            "-XX:TieredStopAtLevel=1",
            f"-Dlogback.configurationFile={HERE / 'logback.xml'}",
        )
        program = ("-cp", f"{jars}/*", "org.gaul.s3proxy.Main")
        self._command = Command((*jvm, *program, "--properties", str(properties)))
        self.child: Child | None = None
        """The process, while it runs."""

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self._port}"

    @property
    def env(self) -> dict[str, str]:
        """The environment that leads an object store to it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def url(self, prefix: str) -> str:
        """``store_url`` of its bucket."""
        return f"s3://{BUCKET}/{prefix}"

    def start(self) -> Child:
        """Start it; wait for :meth:`until_serves`."""
        self.child = Child(self._command, self.log)
        return self.child

    async def until_serves(self) -> None:
        """Return once it takes connections."""
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, self._port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self.child is not None:
            self.child.kill()
            self.child = None
