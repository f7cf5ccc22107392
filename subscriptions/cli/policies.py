"""The verbs of policies, which are the same for every resource that has a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from subscriptions.cli.client import Client
from subscriptions.cli.errors import CliError
from subscriptions.cli.values import content_of
from subscriptions.cli.verbs import Flag, Options, Result, Verb, flag

#: Another caller may change the policy between reading and writing it.
TRIES = 5
MEMBER = flag("--member", "user:ada@example.com, serviceAccount:..., group:..., domain:...", required=True)
ROLE = flag("--role", "roles/pubsub.publisher, or the full name of a custom role", required=True)


def policy_verbs(resource: Flag, name_of: Callable[[Options], str], *, read: str = "GET") -> dict[str, Verb]:
    """Return `get-iam-policy` and the other verbs for the resource that the argument `resource` names."""

    def get(client: Client, options: Options) -> Result:
        return Result(client.call(read, f"{name_of(options)}:getIamPolicy"))

    def put(client: Client, options: Options) -> Result:
        policy = content_of(options["policy_file"])
        if not isinstance(policy, dict):
            raise CliError(f"{options['policy_file']}: not a policy")
        return Result(_set(client, name_of(options), policy))

    def edit(change: Callable[..., None]) -> Callable[[Client, Options], Result]:
        def run(client: Client, options: Options) -> Result:
            name = name_of(options)
            for tries_left in reversed(range(TRIES)):
                policy = client.call(read, f"{name}:getIamPolicy")
                change(policy.setdefault("bindings", []), options["role"], options["member"])
                try:
                    return Result(_set(client, name, policy), note=f"Updated IAM policy for [{name}].")
                except CliError as error:
                    if error.status != "ABORTED" or not tries_left:
                        raise
            raise AssertionError("the last try raises")

        return run

    return {
        "get-iam-policy": Verb("show who holds which roles", get, resource),
        "set-iam-policy": Verb("replace the policy", put, resource, flag("policy_file", "a file in JSON or YAML")),
        "add-iam-policy-binding": Verb("bind another member to a role", edit(_added), resource, MEMBER, ROLE),
        "remove-iam-policy-binding": Verb("remove a member from a role", edit(_removed), resource, MEMBER, ROLE),
    }


def _set(client: Client, name: str, policy: Any) -> Any:
    mask = {"updateMask": "bindings,etag,auditConfigs"} if "auditConfigs" in policy else {}  # which are left otherwise
    return client.call("POST", f"{name}:setIamPolicy", {"policy": policy, **mask})


def _added(bindings: list[Any], role: str, member: str) -> None:
    for binding in bindings:
        if binding["role"] == role:
            binding["members"] = list(dict.fromkeys([*binding["members"], member]))
            return
    bindings.append({"role": role, "members": [member]})


def _removed(bindings: list[Any], role: str, member: str) -> None:
    bindings_with_member = [binding for binding in bindings if binding["role"] == role and member in binding["members"]]
    if not bindings_with_member:
        raise CliError(f"Policy binding with the specified principal and role not found: {member} in {role}")
    for binding in bindings_with_member:
        binding["members"].remove(member)
    bindings[:] = [binding for binding in bindings if binding["members"]]
