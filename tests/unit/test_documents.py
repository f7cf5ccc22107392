"""Documents agree with the code: settings, metrics, nack reasons, the compose file, the image."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deliveries.rules.outcome import Reason, ResponseClass
from deliveries.telemetry.kinds import KINDS as METRICS
from pushhub.celery import SEAL_SECONDS, app
from pushhub.machines import OF_A_MACHINE
from pushhub.runtime.processes import BY_NAME
from subscriptions.cli import main as cli

ROOT = Path(__file__).parents[2]
CHINESE = ROOT / "docs" / "zh_Hans"
READERS = re.compile(r'env\.(\w+)\(\s*"([A-Z_]+)"')


def read_settings() -> dict[str, bool]:
    """Return every setting that the code reads, and whether a file may hold it."""
    settings: dict[str, bool] = {}
    for path in (ROOT / "pushhub").rglob("*.py"):
        for reader, name in READERS.findall(path.read_text(encoding="utf-8")):
            settings[f"PUSHHUB_{name}"] = settings.get(f"PUSHHUB_{name}", False) or reader == "secret"
    return settings


def test_docs_settings_names_every_setting_and_no_other() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(PUSHHUB_\w+)` \|[^|]*\| (.*?) \|$", text, re.M))
    read = read_settings()
    assert len(read) > 20
    assert set(rows) == set(read)
    assert {name for name, meaning in rows.items() if meaning.startswith("*secret*")} == {
        name for name, is_secret in read.items() if is_secret
    }


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_docs_metrics_names_every_metric() -> None:
    names = [metric.rpartition("/")[2] for metric in METRICS]
    assert [name for name in names if f"/{name}`" not in page("metrics.md")] == []


def test_docs_cli_names_every_verb() -> None:
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", page("cli.md"), re.M))
    of_policies = rows["all but `messages`, `dead-letters` and `message-transforms`"].split(", ")
    nouns = {word: cli.tree_of(word) for word in cli.WORDS if word not in (cli.PUBSUB, "iam")}
    nouns["iam service-accounts"] = cli.tree_of("iam")["service-accounts"]
    verbs = {word: [verb for verb in tree if verb not in (*of_policies, "keys")] for word, tree in nouns.items()}
    said = {word: re.findall(r"[\w-]+", rows[f"`{word}`"].partition(";")[0].partition(" (")[0]) for word in nouns}
    assert said == verbs


def test_docs_push_client_names_every_nack_reason_and_the_specification_every_response_class() -> None:
    assert [reason for reason in Reason if f"`{reason}`" not in page("push-client.md")] == []
    assert [value for value in ResponseClass if f"`{value}`" not in page("spec-delivery.md")] == []


def test_docs_scale_says_what_holds_each_timed_task_and_process_to_one_machine() -> None:
    section = page("scale.md").partition("## One at a time")[2].partition("\n## ")[0]
    app.loader.import_default_modules()
    rows = re.findall(r"^\| `(\w+\.\w+)` \| (.+?) \| (.+?) \|$", section, re.M)
    expected = {
        # Beat sends these two with the settings only.
        ("deliveries.archive_start", "`PUSHHUB_ARCHIVE_SECONDS`", "all machines"),
        ("deliveries.segments_ship", f"{SEAL_SECONDS} s", "each machine"),
        ("deliveries.dead_letters_advance", "5 s", "all machines, and then each shard with orders"),
    }
    for entry in app.conf.beat_schedule.values():
        task = entry["task"]
        scope = "each machine" if task in OF_A_MACHINE else "each shard" if entry["args"] else "all machines"
        if task not in {name for name, _, _ in expected}:
            expected.add((task, f"{entry['schedule']:g} s", scope))
    assert set(rows) == expected
    assert len(rows) == len(expected)
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.M))))
    assert named == {*BY_NAME, "migrate"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    services: dict[str, Any] = yaml.safe_load(text)
    return services


def test_the_compose_file_has_the_form_compose_reads(compose: dict[str, Any]) -> None:
    # The schema of the compose specification, as docker-compose 1.29.2 carries it
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.Draft201909Validator(schema).validate(compose)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft201909Validator(schema).validate({**compose, "services": {"web": {"comand": "x"}}})


def test_the_compose_file_runs_every_process_and_checks_its_health(compose: dict[str, Any]) -> None:
    services = compose["services"]
    behind = ("postgres", "redis", "spark-master", "spark-worker")
    assert set(services) == {"proxy", "migrate", *behind, *BY_NAME}
    for name in BY_NAME:
        command = ["python", "-m", "pushhub.runtime.processes", name]
        assert services[name]["command"] == command
        assert services[name]["healthcheck"]["test"] == ["CMD", *command, "--check"]
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert all("healthcheck" in services[name] for name in ("proxy", *behind))
    assert {name for name in services if "ports" in services[name]} == {"proxy", "flower"}, "the others can be scaled"
    for name, service in services.items():
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "5"}, name
        assert service["mem_limit"], name
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True), name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_the_pipeline_is_started_only_if_it_is_asked_for(compose: dict[str, Any]) -> None:
    services = compose["services"]
    asked = {name for name, service in services.items() if service.get("profiles") == ["pipeline"]}
    assert asked == {"rollup", "spark-master", "spark-worker"}
    for name, service in services.items():
        if name not in asked:
            assert not asked & set(service.get("depends_on", {})), name
            assert service["image"] != "pushhub-spark", name


def test_the_compose_file_holds_no_secret_and_sets_what_is_read(compose: dict[str, Any]) -> None:
    read = read_settings()
    for service in compose["services"].values():
        assert set(service.get("secrets", [])) <= set(compose["secrets"])
        for name, value in service["environment"].items() if "environment" in service else ():
            if name.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in service["secrets"]
                assert read.get(name.removesuffix("_FILE"), name.startswith("POSTGRES_"))
            elif name.startswith("PUSHHUB_"):
                assert name in read
                assert "${" not in str(value) or name in ("PUSHHUB_PUBLIC_URL", "PUSHHUB_REDIS_URL"), (
                    "pushhub.env has it"
                )
                assert not re.search(r"://[^/@]*:[^/@]*@", str(value)), name


def test_the_compose_files_further_settings_are_read() -> None:
    text = (ROOT / "deploy" / "pushhub.env").read_text(encoding="utf-8")
    assert {f"PUSHHUB_{name}" for name in re.findall(r"PUSHHUB_([A-Z_]+)=", text)} <= set(read_settings())


def test_the_image_holds_every_program_that_runs_and_starts_without_privileges() -> None:
    *_, last = (ROOT / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")
    lines = last.splitlines()
    from_checkout = "COPY --from=guide /srv/pushhub/"
    copied = {line.removeprefix(from_checkout).split()[0] for line in lines if line.startswith(from_checkout)}
    assert not [line for line in lines if line.startswith("COPY") and "--from" not in line], "its modes would be kept"
    assert copied == {"manage.py", "pushhub", "subscriptions", "deliveries"}
    assert "USER pushhub" in lines
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {f"!{name}" for name in copied} <= set(kept)


def test_every_row_of_the_threat_model_names_tests_that_exist() -> None:
    rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")]
    threats = [row for row in rows if not row.startswith("| threat |")]
    assert len(threats) > 30
    for row in threats:
        named = re.findall(r"`((?:unit|integration|security|pipeline|endtoend|browser)/[a-z_/]*(?:\.py)?)`", row)
        assert named, row
        assert [name for name in named if not (ROOT / "tests" / name).exists()] == [], row


def test_executors_of_the_compose_file_have_what_their_driver_has(
    compose: dict[str, Any],
) -> None:
    """Executors run the image of their driver, know its secret and have its folders. Each loads native libraries."""
    services = compose["services"]
    worker = services["spark-worker"]
    for name in ("rollup", "maintenance"):
        driver = services[name]
        assert "/tmp:exec" in {*driver["tmpfs"]} & {*worker["tmpfs"]}
        image = driver["image"].replace("${PUSHHUB_WITH_SPARK:+-spark}", "-spark")
        assert image == worker["image"] == services["spark-master"]["image"]
        assert set(driver["volumes"]) <= set(worker["volumes"])
        assert driver["environment"]["PUSHHUB_SPARK_MASTER"] == worker["command"][-1].split()[-1]
        assert driver["environment"]["PUSHHUB_SPARK_SECRET_FILE"] in worker["command"][-1]
        assert "-Dspark.authenticate=true" in worker["environment"]["SPARK_DAEMON_JAVA_OPTS"].split()
        assert "spark_secret" in {*driver["secrets"]} & {*worker["secrets"]}


def unchanged(page: Path) -> dict[str, list[str]]:
    """Return what a translation leaves as it is: the blocks, the kinds of the other lines, and where the links lead."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    links = []
    for target, anchor in re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s#]*)(#[^)\s]*)?\)", prose):
        name = str((page.parent / (target or page.name)).resolve()).replace("/docs/zh_Hans/", "/docs/")
        links.append(name if (CHINESE / Path(name).name).exists() else name + anchor)
    return {
        # The commands of the English pages are run, by tests/endtoend/test_guide_commands.py.
        "blocks": re.findall(r"^```(?:sh|python|json|text)\n.*?^```$", text, re.M | re.S),
        "lines": re.findall(r"^(?:#+|\||\d+\.|-) ", prose, re.M),
        "links": sorted(links),
    }


@pytest.mark.parametrize("chinese", [*CHINESE.glob("*.md")], ids=lambda path: path.stem)
def test_a_page_in_chinese_has_the_parts_of_the_english_page(chinese: Path) -> None:
    assert unchanged(chinese) == unchanged(ROOT / "docs" / chinese.name)
