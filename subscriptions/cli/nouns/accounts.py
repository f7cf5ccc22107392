"""`iam service-accounts` and its keys."""

from __future__ import annotations

import base64
from pathlib import Path

from pushhub.common.stores import created_file
from subscriptions.cli.client import Client, Fields
from subscriptions.cli.errors import CliError
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.resources import LIMIT, call_one, describe_by
from subscriptions.cli.verbs import Options, Result, Verb, flag, mask_of

ACCOUNT = flag("account", "the account's email, or its unique id", metavar="IAM_ACCOUNT")
OF_ACCOUNT = flag("--iam-account", "the account's email", required=True, metavar="EMAIL")
TEXTS = (flag("--display-name", "its name for people"), flag("--description", "what it is for"))


def account_name(options: Options) -> str:
    """Return the account's name, in which `-` stands for the project."""
    return f"projects/-/serviceAccounts/{options['account']}"


def create(client: Client, options: Options) -> Result:
    texts = {"displayName": options["display_name"], "description": options["description"]}
    body = {"accountId": options["name"], "serviceAccount": {field: text for field, text in texts.items() if text}}
    account = client.call("POST", f"projects/{options['project']}/serviceAccounts", body)
    return Result(account, note=f"Created service account [{options['name']}].", form="none")


def update(client: Client, options: Options) -> Result:
    texts = {"displayName": options["display_name"], "description": options["description"]}
    changes = {field: text for field, text in texts.items() if text is not None}
    body = {"serviceAccount": changes, "updateMask": mask_of([*changes])}
    account = client.call("PATCH", account_name(options), body)
    return Result(account, note=f"Updated service account [{options['account']}].")


def list_all(client: Client, options: Options) -> Result:
    accounts = client.pages(f"projects/{options['project']}/serviceAccounts", "accounts", limit=options["limit"])
    return Result(accounts, columns=("displayName", "email", "disabled"))


def create_key(client: Client, options: Options) -> Result:
    path = Path(options["output_file"])
    key: Fields = {}
    try:
        with created_file(path) as file:
            key = client.call("POST", f"projects/-/serviceAccounts/{options['iam_account']}/keys")
            file.write(base64.b64decode(key["privateKeyData"]))
    except OSError as error:
        if key:
            client.call("DELETE", key["name"])
        raise CliError(f"{path}: {error.strerror}") from None
    key_id = key["name"].rpartition("/")[2]
    return Result(note=f"created key [{key_id}] of type [json] as [{path}] for [{options['iam_account']}]")


def list_keys(client: Client, options: Options) -> Result:
    keys = client.call("GET", f"projects/-/serviceAccounts/{options['iam_account']}/keys").get("keys", [])
    return Result(keys, columns=("name", "validAfterTime", "validBeforeTime", "disabled"))


def delete_key(client: Client, options: Options) -> Result:
    client.call("DELETE", f"projects/-/serviceAccounts/{options['iam_account']}/keys/{options['key']}")
    return Result(note=f"deleted key [{options['key']}] for service account [{options['iam_account']}]")


VERBS = {
    "create": Verb("create an account", create, flag("name", "6 to 30 letters, digits and hyphens"), *TEXTS),
    "update": Verb("change its display name or description", update, ACCOUNT, *TEXTS),
    "delete": call_one("delete an account", account_name, "DELETE", "Deleted service account [{account}].", ACCOUNT),
    "describe": Verb("show an account", describe_by(account_name), ACCOUNT),
    "list": Verb("show a project's accounts", list_all, LIMIT),
    "enable": call_one(
        "enable an account again", account_name, "POST :enable", "Enabled service account [{account}].", ACCOUNT
    ),
    "disable": call_one(
        "disable an account: it gets no more tokens",
        account_name,
        "POST :disable",
        "Disabled service account [{account}].",
        ACCOUNT,
    ),
    **policy_verbs(ACCOUNT, account_name, read="POST"),
}
KEY_VERBS = {
    "create": Verb(
        "create a key and write its key file", create_key, flag("output_file", "must not exist"), OF_ACCOUNT
    ),
    "list": Verb("show an account's keys", list_keys, OF_ACCOUNT),
    "delete": Verb("delete a key", delete_key, flag("key", "the key's id"), OF_ACCOUNT),
}
