"""`examples/deploy`: images are built as a script, manifests agree with the server and with Kubernetes' schemas, dashboards with
`/metrics`."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxengine import cli
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import as_written, given_options
from jaxengine.server.options import NetworkConfig, ServerConfig, read_options
from tests.fronts import make_engine
from tests.server.rig import Live, live

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DEVICES = {"cpu": None, "tpu": "google.com/tpu", "gpu": "nvidia.com/gpu"}


def instructions(file: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile: word and rest."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / file).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in text.splitlines() if line.strip()]


def last(file: str, word: str) -> str:
    return [rest for name, rest in instructions(file) if name == word][-1]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(make_engine()) as running:
        yield running


def test_the_image_is_not_run_by_root_keeps_its_cache_and_listens_to_all() -> None:
    assert last("Dockerfile", "USER") == "1000:1000"
    environment = dict(word.split("=", 1) for word in shlex.split(last("Dockerfile", "ENV")))
    assert environment["JAXENGINE_HOST"] == "0.0.0.0"
    volume = last("Dockerfile", "VOLUME")
    assert all(environment[name].startswith(volume) for name in ("HOME", "HF_HOME", "JAXENGINE_CACHE_DIR"))
    assert int(last("Dockerfile", "EXPOSE")) == NetworkConfig().port


def test_the_image_has_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.removesuffix("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = {word for name, rest in instructions("Dockerfile") if name == "COPY" for word in rest.split()[:-1]}
    assert packages <= copied


def test_the_health_check_knows_a_server_that_is_well(server: Live) -> None:
    check = json.loads(last("Dockerfile", "HEALTHCHECK").split("CMD")[1])
    script = check[2].replace("http://127.0.0.1:8000", server.url)
    assert script != check[2]
    for path, well in (("/health", True), ("/nothing", False)):
        done = subprocess.run([sys.executable, "-c", script.replace("/health", path)], capture_output=True, timeout=60)
        assert (done.returncode == 0) is well


def test_hosts_of_a_slice_are_started_with_the_same_options() -> None:
    manifest = next(yaml.safe_load_all((KUBERNETES / "hosts" / "leaderworkerset.yaml").read_text()))
    template = manifest["spec"]["leaderWorkerTemplate"]
    given = {}
    for role in ("leader", "worker"):
        [container] = template[f"{role}Template"]["spec"]["containers"]
        namespace = cli._parser().parse_args(as_written(["serve", *container["args"]]))
        given[role] = given_options(namespace, EngineConfig, ServerConfig)
        assert int(container["resources"]["limits"]["google.com/tpu"]) * template["size"] == 16
    assert given["worker"].pop("headless")
    assert given["worker"] == given["leader"]
    assert given["leader"]["tensor_parallel_size"] == 16
    assert given["leader"]["distributed_executor_backend"] == "external"


def test_what_the_bundle_is_made_and_started_with_is_understood() -> None:
    [made] = [rest for name, rest in instructions("Dockerfile.bundle") if name == "RUN"]
    compile_, serve = made.split("; ")[1], json.loads(last("Dockerfile.bundle", "ENTRYPOINT"))[2].removeprefix("exec ")
    for line in (compile_.replace("$TARGET", "v6e-1").replace("$OPTIONS", ""), serve.replace('"$@"', "--port 80")):
        cli._parser().parse_args(as_written(shlex.split(line)[1:]))


@pytest.mark.slow
@pytest.mark.rare
def test_the_build_runs_as_a_script_in_a_clean_root(tmp_path: Path) -> None:
    """The first stage, instruction by instruction, with `/src` and `/opt` in an empty directory; then what was installed runs."""
    source, environ = tmp_path / "src", {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "EXTRA": ""}
    source.mkdir()
    for name, rest in instructions("Dockerfile"):
        if name == "COPY" and not rest.startswith("--from"):
            *files, target = rest.split()
            for file in files:
                place = source / (file if target == "./" else target)
                copy = shutil.copytree if (ROOT / file).is_dir() else shutil.copy
                copy(ROOT / file, place)
        elif name == "RUN" and "/opt/jaxengine" in rest:
            line = rest.replace("/opt/", f"{tmp_path}/opt/").replace("python -m", f"{shlex.quote(sys.executable)} -m")
            subprocess.run(["sh", "-ec", line], cwd=source, env=environ, check=True, timeout=900)
    command = [
        str(tmp_path / "opt" / "jaxengine" / "bin" / "jaxengine"),
        "generate",
        "Once",
        "--max-tokens",
        "3",
        "--quiet",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("Once"), done.stderr


def built(overlay: str) -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k` would send."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    done = subprocess.run(["kubectl", "kustomize", KUBERNETES / overlay], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("overlay", [*DEVICES, "monitoring"])
def test_manifests_follow_the_schemas_of_kubernetes(overlay: str) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for made in built(overlay):
        if made["apiVersion"].startswith("monitoring.coreos.com"):
            continue  # the operator's own kind, whose schema is not among them
        for version in ("1.28", "1.34"):
            validator.validate(made, version, strict=True)


@pytest.mark.parametrize("overlay", DEVICES)
def test_a_pod_asks_for_its_device_and_a_service_finds_it(overlay: str) -> None:
    found = {made["kind"]: made for made in built(overlay)}
    pod = found["Deployment"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    device = DEVICES[overlay]
    assert [name for name in container["resources"]["limits"] if "/" in name] == [device] * (device is not None)
    assert found["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    monitor = yaml.safe_load((KUBERNETES / "monitoring" / "service-monitor.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"].items() <= found["Service"]["metadata"]["labels"].items()
    assert {port["name"] for port in found["Service"]["spec"]["ports"]} == {monitor["spec"]["endpoints"][0]["port"]}
    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    assert claim in [volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["spec"]["volumes"]]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"]["port"] in [port["name"] for port in container["ports"]]


def deployment() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((KUBERNETES / "base" / "deployment.yaml").read_text())
    return made["spec"]["template"]["spec"]


def test_a_pod_is_started_with_options_that_are_there_and_has_time_to_drain() -> None:
    pod = deployment()
    [container] = pod["containers"]
    namespace = cli._parser().parse_args(as_written(["serve", *container["args"]]))
    _, options = read_options(given_options(namespace, ServerConfig))
    assert container["ports"][0]["containerPort"] == options.network.port
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pause + options.limits.shutdown_timeout + 10


def test_probes_fail_from_when_the_server_drains(server: Live) -> None:
    [container] = deployment()["containers"]
    paths = {container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"/health"}
    assert server.http.get("/health").status_code == 200
    with live(make_engine()) as other:
        other.service.engine.drain()
        assert other.http.get("/health").status_code == 503


def metrics(server: Live) -> set[str]:
    """The names of all samples."""
    server.post("/v1/completions", prompt="Tom", max_tokens=2)
    return set(re.findall(r"^([a-z0-9_:]+)(?=[ {])", server.http.get("/metrics").text, re.MULTILINE))


def test_dashboard_and_autoscaler_ask_for_metrics_that_there_are(server: Live) -> None:
    dashboard = json.loads((KUBERNETES / "monitoring" / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [variable["query"] for variable in dashboard["templating"]["list"]]
    [rule] = yaml.safe_load((KUBERNETES / "monitoring" / "adapter-values.yaml").read_text())["rules"]["custom"]
    asked.append(rule["seriesQuery"])
    names = {name for expression in asked for name in re.findall(r"(?:vllm|jaxengine):[a-z0-9_]+", expression)}
    assert len(names) > 12
    assert names <= metrics(server)
    [metric] = yaml.safe_load((KUBERNETES / "monitoring" / "autoscaler.yaml").read_text())["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
