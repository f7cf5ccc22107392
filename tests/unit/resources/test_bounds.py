"""Bounds, defaults and their texts (docs/spec-messages.md#subscription-fields), and which endpoints are allowed."""

from __future__ import annotations

import pytest

from pushhub.common.addresses import AddressGuard
from pushhub.common.errors import InvalidArgument
from subscriptions.resources import bounds, endpoints


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0s"),
        (599_000, "9m59s"),
        (600_000, "10m"),
        (3_600_000, "1h"),
        (744 * 3_600_000, "744h"),
        (86_399_000, "23h59m59s"),
        (500, "0.5s"),
        (-1_000, "-1s"),
        (3_600_001, "1h0.001s"),
    ],
)
def test_error_texts_write_durations_as_production_does(milliseconds: int, text: str) -> None:
    assert bounds.duration_text(milliseconds) == text


@pytest.mark.parametrize("value", [1, 9, 601, -1])
def test_an_ack_deadline_out_of_bounds_is_refused(value: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        bounds.ack_deadline(value, exactly_once=False)

    assert caught.value.field == "ackDeadlineSeconds"
    assert caught.value.message == (
        f"Invalid ack deadline given (ack_deadline={value}). The ack deadline must be between 10 and 600 seconds."
    )


def test_ack_deadlines_have_a_default_and_another_with_exactly_once() -> None:
    assert bounds.ack_deadline(None, exactly_once=False) == 10
    assert bounds.ack_deadline(0, exactly_once=True) == 60
    assert [bounds.ack_deadline(value, exactly_once=True) for value in (10, 600)] == [10, 600]


def test_retention_has_bounds_in_productions_words() -> None:
    assert [bounds.retention(value) for value in (600_000, 600_500, 2_678_400_000)] == [600_000, 600_500, 2_678_400_000]
    for milliseconds in (599_999, 2_678_400_001):
        with pytest.raises(InvalidArgument):
            bounds.retention(milliseconds)
    with pytest.raises(InvalidArgument) as caught:
        bounds.retention(599_000)
    assert caught.value.message == (
        "The value for message retention duration is out of bounds. "
        "You passed 9m59s in the request, but the value must be between 10m and 744h."
    )


def test_expiration_has_a_minimum_in_productions_words() -> None:
    assert bounds.expiration_ttl(86_400_000) == 86_400_000
    with pytest.raises(InvalidArgument) as caught:
        bounds.expiration_ttl(3_600_000)
    assert caught.value.message == (
        "The value for expiration duration is too small. You passed 1h in the request, but the minimum value is 24h."
    )


def test_the_default_retention_is_no_longer_than_the_life() -> None:
    assert bounds.default_retention(None) == 604_800_000
    assert bounds.default_retention(86_400_000) == 86_400_000
    assert bounds.default_retention(2_678_400_000) == 604_800_000


def test_a_retry_policy_fills_in_a_missing_bound() -> None:
    assert bounds.backoffs(None, None) == (10_000, 600_000)
    assert bounds.backoffs(0, None) == (0, 600_000)
    assert bounds.backoffs(None, 20_000) == (10_000, 20_000)


@pytest.mark.parametrize(("minimum", "maximum"), [(-1, None), (600_001, None), (None, 600_001), (2, 1), (None, 5_000)])
def test_backoffs_stay_in_bounds_and_in_order(minimum: int | None, maximum: int | None) -> None:
    with pytest.raises(InvalidArgument) as caught:
        bounds.backoffs(minimum, maximum)

    assert caught.value.field.startswith("retryPolicy.")


@pytest.mark.parametrize("value", [1, 4, 101, -5])
def test_delivery_attempts_stay_in_bounds(value: int) -> None:
    with pytest.raises(InvalidArgument, match="between 5 and 100"):
        bounds.delivery_attempts(value)
    assert bounds.delivery_attempts(None) == 5


@pytest.mark.parametrize("key", ["a", "team_1-x", "日本", "é", "a" * 63])
def test_label_keys_may_be_of_any_script_without_capitals(key: str) -> None:
    assert bounds.labels(
        {
            key: "",
        }
    ) == {key: ""}


@pytest.mark.parametrize("key", ["", "Upper", "1a", "_a", "a b", "a" * 64, "a.b"])
def test_a_bad_label_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        bounds.labels({key: "x"})

    assert f'key "{key}" does not conform to regular expression' in caught.value.message
    assert r'"[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}"' in caught.value.message
    assert caught.value.field == f"labels.{key}"


@pytest.mark.parametrize("value", ["Upper", "a b", "x" * 64])
def test_a_bad_label_value_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgument, match="value"):
        bounds.labels({"key": value})


def test_push_attributes_take_the_current_version_only() -> None:
    assert bounds.push_attributes({"x-goog-version": "v1"}) == {"x-goog-version": "v1"}
    with pytest.raises(InvalidArgument) as caught:
        bounds.push_attributes({"x-goog-version": "v1beta1"})
    assert caught.value.message == "Invalid push endpoint version given in push config (version=v1beta1)."


@pytest.mark.parametrize(
    ("key", "value"), [("x-pushhub-rate", "2.5"), ("x-pushhub-burst", "10"), ("x-pushhub-max-outstanding", "30000")]
)
def test_pushhubs_own_attributes_are_numbers(key: str, value: str) -> None:
    assert bounds.push_attributes({key: value}) == {key: value}
    for wrong in ("", "0", "-1", "many", "1e3", "nan", "99999999"):
        with pytest.raises(InvalidArgument) as caught:
            bounds.push_attributes({key: wrong})
        assert caught.value.field == f"pushConfig.attributes.{key}"


def test_a_misspelt_attribute_of_pushhubs_own_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="x-pushhub-rate"):
        bounds.push_attributes({"x-pushhub-rat": "5"})


@pytest.mark.parametrize(
    "url",
    ["http://example.com", "ftp://example.com", "https://u:p@example.com", "https://127.1/", "https://a/" + "a" * 2048],
)
def test_a_url_that_no_push_can_have_is_refused_in_productions_words(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        endpoints.push_endpoint(url, allow_http=False)

    assert caught.value.field == "pushConfig.pushEndpoint"
    assert caught.value.message.startswith(f"Invalid push endpoint given (endpoint={url[:100]}")
    assert caught.value.message.endswith(
        "Refer to https://cloud.google.com/pubsub/subscriber#create for more information."
    )


def test_http_endpoints_need_a_setting() -> None:
    assert endpoints.push_endpoint("http://localhost:8080/x", allow_http=True) == "http://localhost:8080/x"


@pytest.mark.parametrize("port", [22, 25, 6379, 5432, 1023])
def test_ports_of_other_services_are_refused_unless_allowed(port: int) -> None:
    url = f"https://example.com:{port}/push"
    with pytest.raises(InvalidArgument, match=f"Port {port} is not allowed") as caught:
        endpoints.push_endpoint(url, allow_http=False)
    assert caught.value.field == "pushConfig.pushEndpoint"
    assert endpoints.push_endpoint(url, allow_http=False, allowed_ports=frozenset({port})) == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://10.0.0.1/x", "private"),
        ("https://127.0.0.1:8443/", "loopback"),
        ("https://１２７.0.0.1/", "loopback"),
        ("https://[::ffff:10.0.0.1]/", "private"),
        ("https://[fd00::1]/", "unique local"),
        ("https://169.254.169.254/", "link-local"),
        ("https://redis/", "a name in the local network"),
        ("https://localhost./", "a name in the local network"),
    ],
)
def test_hosts_that_the_push_would_be_denied_are_refused_by_name(url: str, why: str) -> None:
    guard = AddressGuard()
    with pytest.raises(InvalidArgument) as caught:
        endpoints.push_endpoint(url, allow_http=False, guard=guard)
    assert caught.value.field == "pushConfig.pushEndpoint"
    assert f"is not allowed ({why}), unless PUSHHUB_ALLOW_PRIVATE" in caught.value.message


def test_a_port_of_pushhub_is_refused_whatever_the_settings_allow() -> None:
    guard = AddressGuard(own_listeners=[("8.8.4.4", 8000)], allow_private=True)
    with pytest.raises(InvalidArgument, match="Port 8000 is PushHub's own") as caught:
        endpoints.push_endpoint("https://8.8.4.4:8000/", allow_http=False, guard=guard)
    assert "PUSHHUB_" not in caught.value.message


@pytest.mark.parametrize("url", ["https://8.8.8.8/", "https://[2606:4700::1]/", "https://example.com/"])
def test_hosts_that_may_be_pushed_to_are_accepted(url: str) -> None:
    assert endpoints.push_endpoint(url, allow_http=False, guard=AddressGuard()) == url


@pytest.mark.parametrize(
    ("url", "guard"),
    [
        ("https://10.0.0.1/x", AddressGuard(allow_private=True)),
        ("https://10.0.0.1/x", AddressGuard(allowed_networks=["10.0.0.0/16"])),
        ("https://redis/", AddressGuard(allow_private=True)),
        ("https://redis/", AddressGuard(allowed_networks=["172.18.0.0/16"])),
    ],
)
def test_settings_allow_the_local_network(url: str, guard: AddressGuard) -> None:
    assert endpoints.push_endpoint(url, allow_http=False, guard=guard) == url
