"""Real hosts for real measurements: network namespaces on one bridge, shaped in both directions, where root may make them.

A host's rate is that of its payload: of 1 Gbit/s at an MTU of 1500 bytes, 1448 of 1514 bytes are payload, 119.55 MB/s. Things
that broke it: a bucket of 16 or 64 KiB reads 45-60 % low (128 KiB is two segments of the largest size and works); without
GLOO_SOCKET_IFNAME gloo listens on 127.0.0.1; hosts that share a name count as one, so each has a UTS namespace of its own.
"""

import importlib.util
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

collect_ignore = ["llama_step.py"]  # a program that needs torch, run by the tests
if "PYTEST_XDIST_WORKER" in os.environ:
    collect_ignore.append("test_real.py")  # it measures, so it wants the machine for itself: CI runs the file alone

HERE = Path(__file__).parent
BURST = "131072"
PAYLOAD = 1448 / 1514
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}


def torch_missing():
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (pip install 'parlay[calibrate]')"
    return None


def hosts_missing():
    """Return why two hosts cannot be made here, None where they can."""
    if torch_missing():
        return torch_missing()
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    name = f"pt{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces are not allowed here: {made.stderr.strip()[:80]}"
    try:
        link = ["ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"]
        tbf = ["tc", "-n", name, "qdisc", "add", "dev", "v0", "root", "tbf", "rate", "1gbit", "burst", BURST, "latency", "100ms"]
        for command in (link, tbf):
            if subprocess.run(command, capture_output=True).returncode:
                return f"the kernel lacks {'veth' if command is link else 'the tbf shaper'}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None


numbers = itertools.count()


class Hosts:
    """Two hosts on one bridge; `rate` as tc spells it."""

    def __init__(self, rate, count=2):
        self.count, self.tag = count, f"pt{os.getpid()}x{next(numbers)}"
        self.bridge = f"{self.tag}br"
        self.started = []
        try:
            self._build(rate)
        except BaseException:
            self.close()
            raise

    def _build(self, rate):
        run(f"ip netns add {self.bridge}")
        run(f"ip -n {self.bridge} link add br0 type bridge")
        run(f"ip -n {self.bridge} link set br0 up")
        for i in range(self.count):
            host = self.name(i)
            run(f"ip netns add {host}")
            run(f"ip -n {host} link add eth0 type veth peer name p{i} netns {self.bridge}")
            run(f"ip -n {host} link set lo up")
            run(f"ip -n {host} addr add 10.77.0.{i + 1}/24 dev eth0")
            run(f"ip -n {host} link set eth0 up")
            run(f"ip -n {self.bridge} link set p{i} master br0 up")
            shape = f"root tbf rate {rate} burst {BURST} latency 100ms"
            run(f"tc -n {host} qdisc add dev eth0 {shape}")
            run(f"tc -n {self.bridge} qdisc add dev p{i} {shape}")

    def name(self, i):
        return f"{self.tag}h{i}"

    def start(self, *arguments, ranks_by_env=False):
        """Start one rank a host: torchrun, or plain Python with torchrun's variables, whose process is then the rank itself."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.started = []
        for i in range(self.count):
            environment = os.environ | ENVIRONMENT
            program = [sys.executable]
            if ranks_by_env:
                environment |= {"RANK": str(i), "WORLD_SIZE": str(self.count), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
                environment |= {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(port)}
            else:
                program += ["-m", "torch.distributed.run", f"--nnodes={self.count}", "--nproc_per_node=1", f"--node_rank={i}"]
                program += ["--master_addr=10.77.0.1", f"--master_port={port}"]
            script = 'hostname "$0"; exec "$@"'
            command = ["ip", "netns", "exec", self.name(i), "unshare", "--uts", "sh", "-c", script, f"host{i}"]
            self.started.append(
                subprocess.Popen(
                    [*command, *program, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
        return self.started

    def wait(self, limit_s):
        """Return (exit code, stdout, stderr) of each host, by host; a host that outlasts the limit fails the test."""
        end, out = time.monotonic() + limit_s, []
        for process in self.started:
            stdout, stderr = process.communicate(timeout=max(end - time.monotonic(), 1))
            out.append((process.returncode, stdout, stderr))
        return out

    def cut(self, i):
        """Take host i's link down, silently for the other."""
        run(f"ip -n {self.bridge} link set p{i} down")

    def close(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()
        for name in (*(self.name(i) for i in range(self.count)), self.bridge):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def run(command):
    done = subprocess.run(command.split(), capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.fixture(scope="session")
def why_no_hosts():
    """Why two hosts cannot be made here, None where they can."""
    return hosts_missing()


@pytest.fixture(scope="session")
def make_hosts(why_no_hosts):
    """What makes hosts of a rate; whoever makes them closes them."""
    if why_no_hosts:
        pytest.skip(why_no_hosts)
    return Hosts


@pytest.fixture
def hosts(make_hosts):
    """Make hosts of a rate; what was made goes away with the test."""
    made = []

    def make(rate):
        made.append(make_hosts(rate))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def with_torch():
    why = torch_missing()
    if why:
        pytest.skip(why)
