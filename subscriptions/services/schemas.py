"""Schemas, their revisions, and messages checked against them. Requests come as decoded JSON, as for topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import thread_time
from typing import Any

from django.db import transaction

from pushhub.common import names
from pushhub.common.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, clipped
from pushhub.common.principals import OPERATOR, Principal
from pushhub.common.protojson import parse_bytes
from pushhub.common.rows import row_or_none
from pushhub.common.sizedcache import SizedCache
from subscriptions import selectors
from subscriptions.models import Topic
from subscriptions.models.schemas import Schema, SchemaRevision
from subscriptions.resources import fields
from subscriptions.schemarules.avrobinary import Mismatch
from subscriptions.schemarules.compatible import fault_between
from subscriptions.schemarules.limits import MAX_REVISIONS, MAX_SCHEMAS
from subscriptions.schemarules.protobuf import check_compiled
from subscriptions.schemarules.validators import PROTOCOL_BUFFER, Definition, Validator, compile_definition
from subscriptions.services.projects import ensure_project
from subscriptions.services.rows import check_free, check_name, insert

#: The CPU time that the messages of a publish have: a thousand of the dearest, with twenty revisions, would take hours.
CHECK_SECONDS = 10.0
#: Compiled validators take ten to twenty times the bytes of their definition (6.7 MB for 297 KB), and at least a few
#: kilobytes. A number of them bounds nothing, as one tenant can have hundreds of the largest.
KEPT_DEFINITION_BYTES = 4 << 20
LEAST_KEPT_BYTES = 4096


def create_schema(*, parent: str, schema_id: str, schema: object, caller: Principal = OPERATOR) -> SchemaRevision:
    """Create a schema and return its first revision. A name in `schema` is ignored (schema.proto)."""
    project_id = names.parse_project(parent, field="parent")
    name = names.schema_name(project_id, schema_id)
    _plain(name, field="schemaId")
    definition = _read_definition(read_schema(schema))
    with transaction.atomic():
        project = ensure_project(project=project_id, caller=caller)
        check_free(Schema.objects.filter(project=project, schema_id=schema_id), schema_id)
        if Schema.objects.filter(project=project).count() >= MAX_SCHEMAS:
            raise ResourceExhausted(f"Project {project.project_id} has {MAX_SCHEMAS} schemas, which is the most.")
        row = Schema(project=project, schema_id=schema_id, type=definition.type)
        insert(row, schema_id)
        return _add_revision(row, definition)


def commit_schema(*, name: str, request: object) -> SchemaRevision:
    """Add a revision to a schema. `request` is a CommitSchemaRequest."""
    _plain(name)
    parsed = fields.COMMIT_SCHEMA.read(request)
    check_name(parsed, name)
    resource = read_schema(parsed.get("schema", {}))
    check_name(resource, name)
    definition = _read_definition(resource)
    # Comparing may take seconds, so the lock is only held for the revisions that came meanwhile.
    compared = _check_compatible(selectors.get_schema(name=name), definition)
    with transaction.atomic():
        row = selectors.get_schema(name=name, lock=True)
        _check_compatible(row, definition, compared=compared)
        return _add_revision(row, definition)


def _check_compatible(row: Schema, new: Definition, *, compared: Collection[str] = ()) -> list[str]:
    """Compare a definition with the revisions that it wasn't `compared` with, and return their ids."""
    if row.type != new.type:
        raise InvalidArgument(f"The schema's type is {row.type} and cannot change.", field="schema.type")
    parsed = new.parsed()
    revisions = list(row.revisions.exclude(revision_id__in=compared))
    for revision in reversed(revisions):
        fault = fault_between(parsed, _definition_of(revision).parsed())
        if fault:
            raise InvalidArgument(
                f'Compatibility checking failed to commit a schema revision for (schema="{row.name}"). '
                f'(reason="Revision is incompatible with previous revision: {revision.revision_id}. Failed with error: '
                f'{clipped(fault)}"). Refer to https://cloud.google.com/pubsub/docs/schemas for more information.',
                field="schema.definition",
            )
    return [revision.revision_id for revision in revisions]


def _definition_of(revision: SchemaRevision) -> Definition:
    return Definition(revision.schema.type, revision.definition, bytes(revision.compiled), revision.root_message)


def rollback_schema(*, name: str, request: object) -> SchemaRevision:
    """Add a revision with the definition of an older one. `request` is a RollbackSchemaRequest."""
    _plain(name)
    parsed = fields.ROLLBACK_SCHEMA.read(request)
    check_name(parsed, name)
    if "revisionId" not in parsed:
        raise InvalidArgument(
            "You have passed an invalid argument to the service (argument=revision_id).", field="revisionId"
        )
    with transaction.atomic():
        row = selectors.get_schema(name=name, lock=True)
        old = selectors.get_schema_revision(schema=row, revision_id=parsed["revisionId"], field="revisionId")
        return _add_revision(row, _definition_of(old))


def delete_schema(*, name: str) -> None:
    """Delete a schema with its revisions. Topics that use it show its deletion from then on and refuse messages."""
    _plain(name)
    with transaction.atomic():
        row = selectors.get_schema(name=name, lock=True)
        for topic in Topic.objects.select_for_update().filter(schema_settings__schema=row.name):
            topic.schema_settings = {**(topic.schema_settings or {}), "schema": names.DELETED_SCHEMA}
            topic.save()
        row.delete()


def delete_schema_revision(*, name: str, revision_id: str = "") -> SchemaRevision:
    """Delete the revision of `{name}@{revision}` and return the latest of the others."""
    revision_id = names.parse_schema(name)[2] or revision_id
    with transaction.atomic():
        row = selectors.get_schema(name=name, lock=True)
        if not revision_id:
            raise names.invalid_name(name)
        revision = selectors.get_schema_revision(schema=row, revision_id=revision_id)
        if row.revisions.count() == 1:
            raise FailedPrecondition("The only revision of a schema cannot be deleted. Delete the schema instead.")
        for topic in Topic.objects.filter(schema_settings__schema=row.name):
            if revision_id in ((topic.schema_settings or {}).get(end) for end in ("firstRevisionId", "lastRevisionId")):
                # The error doesn't name the topic, which the owner of the schema may not know.
                raise FailedPrecondition("The revision is the first or the last that the settings of a topic allow.")
        revision.delete()
        return selectors.get_schema_revision(schema=row)


def validate_schema(*, schema: object) -> None:
    """Raise InvalidArgument unless a ValidateSchemaRequest's schema could be created."""
    _read_definition(read_schema(fields.VALIDATE_SCHEMA.read(schema).get("schema", {})))


def validate_message(*, request: object) -> None:
    """Raise InvalidArgument unless the message of a ValidateMessageRequest matches the schema."""
    parsed = fields.VALIDATE_MESSAGE.read(request)
    if "encoding" not in parsed:
        raise InvalidArgument("The encoding must be JSON or BINARY.", field="encoding")
    encoding = parsed["encoding"]
    if ("name" in parsed) == ("schema" in parsed):
        raise InvalidArgument("The request must have either a name or a schema.", field="name")
    if "name" in parsed:
        row = selectors.schema_named(name=parsed["name"])
        check = _validators(row.pk, row.revision_id)[encoding]
    else:
        check = _read_definition(read_schema(parsed["schema"])).validators()[encoding]
    try:
        check(parse_bytes(parsed.get("message", ""), field="message"))
    except Mismatch as error:
        raise failed_validation(str(error), field="message") from None


def message_stamps(settings: Mapping[str, Any], messages: Sequence[bytes]) -> list[dict[str, str]]:
    """Return, for each message, the attributes that name the schema revision which it matches.

    Tries the newest revision that the topic's settings allow first. Raises InvalidArgument for a message that matches
    none of them.
    """
    name = settings["schema"]
    if name == names.DELETED_SCHEMA:
        raise FailedPrecondition("The schema of the topic has been deleted.")
    revisions = _allowed(settings, selectors.schema_revision_ids(name=name))
    encoding = settings["encoding"]
    common = {"googclient_schemaencoding": encoding, "googclient_schemaname": name}
    return [{**common, "googclient_schemarevisionid": match} for match in _matches(messages, revisions, encoding)]


def _matches(messages: Sequence[bytes], revisions: Sequence[tuple[int, str]], encoding: str) -> list[str]:
    """Return the id of the first revision that each message matches.

    Each revision is compared with all messages that are left, as compiled ones may not all be kept until the next
    message.
    """
    ends = thread_time() + CHECK_SECONDS
    left = dict(enumerate(messages))
    matched: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for pk, revision_id in revisions:
        if not left:
            break
        check = _validators(pk, revision_id)[encoding]
        for index, data in [*left.items()]:
            if thread_time() > ends:
                raise InvalidArgument(
                    f"To check the messages against the topic's schema takes longer than {CHECK_SECONDS:.0f} s. "
                    "Publish fewer messages in one request.",
                    field="messages",
                )
            try:
                check(data)
            except Mismatch as error:
                reasons.setdefault(index, str(error))
            else:
                matched[index] = revision_id
                del left[index]
    for index in left:
        reason = reasons.get(index, "The topic's schema has no revision that it allows.")
        raise failed_validation(reason, field=f"messages[{index}].data")
    return [revision_id for _, revision_id in sorted(matched.items())]


def failed_validation(reason: str, *, field: str) -> InvalidArgument:
    return InvalidArgument(f"Invalid data in message: Message failed schema validation. {reason}", field=field)


def _allowed(settings: Mapping[str, Any], revisions: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the revisions in the allowed range. Both lists begin with the newest."""
    keys = {revision_id: pk for pk, revision_id in revisions}
    first = keys.get(settings.get("firstRevisionId", ""), 0)
    last = keys.get(settings.get("lastRevisionId", ""), revisions[0][0] if revisions else 0)
    return [(pk, revision_id) for pk, revision_id in revisions if first <= pk <= last]


_kept: SizedCache[tuple[int, str], dict[str, Validator]] = SizedCache(most_bytes=KEPT_DEFINITION_BYTES)


def _validators(pk: int, revision_id: str) -> dict[str, Validator]:
    """Return the validators of a revision, which never changes. Its random id is here because keys can be reused."""
    kept = _kept.get((pk, revision_id))
    if kept is not None:
        return kept
    row = row_or_none(SchemaRevision.objects.select_related("schema").filter(pk=pk, revision_id=revision_id))
    if row is None:
        raise NotFound(f"Schema revision not found (revision={revision_id}).")
    definition = _definition_of(row)
    built = definition.validators()
    size = max(len(definition.text.encode()) + len(definition.compiled), LEAST_KEPT_BYTES)
    _kept.put((pk, revision_id), built, size=size)
    return built


def read_schema(schema: object) -> dict[str, Any]:
    """Read a Schema from a request. The result has a type and a definition, which may be empty."""
    resource = fields.SCHEMA.read(schema)
    if "type" not in resource:
        raise InvalidArgument("The schema's type must be PROTOCOL_BUFFER or AVRO.", field="schema.type")
    return {"definition": "", **resource}


def _read_definition(resource: Mapping[str, Any]) -> Definition:
    """Return the definition of a Schema that was read; InvalidArgument unless it is valid."""
    type_, text = resource["type"], resource["definition"]
    if "compiledProtoSchema" not in resource:
        return compile_definition(type_, text)
    if type_ != PROTOCOL_BUFFER:
        raise InvalidArgument(f"A schema of type {type_} has no compiled form.", field="schema.compiledProtoSchema")
    if text:
        raise InvalidArgument(
            "A schema must have either a definition or a compiledProtoSchema.", field="schema.compiledProtoSchema"
        )
    compiled = resource["compiledProtoSchema"]
    descriptor_set = parse_bytes(compiled.get("compiledBytes", ""), field="schema.compiledProtoSchema.compiledBytes")
    root_message = compiled.get("rootMessage", "")
    check_compiled(descriptor_set, root_message)
    return Definition(type_, "", descriptor_set, root_message)


def _plain(name: str, *, field: str = "name") -> None:
    """Refuse a name that includes a revision."""
    if names.parse_schema(name, field=field)[2]:
        raise names.invalid_name(name, field=field)


def _add_revision(row: Schema, definition: Definition) -> SchemaRevision:
    if row.revisions.count() >= MAX_REVISIONS:
        raise ResourceExhausted(f"Schema {row.schema_id} has {MAX_REVISIONS} revisions, which is the most.")
    revision = SchemaRevision(
        schema=row, definition=definition.text, compiled=definition.compiled, root_message=definition.root_message
    )
    revision.save(force_insert=True)
    return revision
