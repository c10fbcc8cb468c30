"""Signatures of requests: the recipes against the examples that their vendors publish."""

from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError

from onetool.errors import ToolError
from onetool.net import Request
from onetool.sources.http.definition import HttpImpl
from onetool.sources.http.placeholders import Values

AWS_KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
AWS_TIME = 1440938160.0  # 2015-08-30 12:36:00 UTC
AWS = {
    "recipe": "aws-sigv4",
    "key": "${secret:KEY}",
    "keyId": "AKIDEXAMPLE",
    "region": "us-east-1",
    "service": "iam",
}
SLACK_BODY = (
    "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    "&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    "&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    "&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)


def sign(hmac: dict[str, Any], key: str, now: float = 0.0, **fields: Any) -> tuple[Request, Values]:
    given = {
        "method": "POST",
        "urlTemplate": "https://api.test/",
        "hmac": {"key": "${secret:KEY}", **hmac},
        **fields,
    }
    impl, values = (
        HttpImpl.model_validate(given),
        Values({}, frozenset(), {"KEY": key, "TOKEN": "t0ken"}.get),
    )
    unsigned = HttpImpl.model_validate(
        {name: given[name] for name in given if name != "hmac"}
    ).request.fill(values)
    assert impl.request.signer is not None
    return impl.request.signer.sign(unsigned, values, now), values


def get_header(request: Request, name: str) -> str:
    return dict(request.headers)[name]


def test_the_example_of_github() -> None:
    # https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
    signed, values = sign(
        {"recipe": "github-sha256"}, "It's a Secret to Everybody", body="Hello, World!"
    )
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert get_header(signed, "X-Hub-Signature-256") == f"sha256={digest}"
    assert "x-hub-signature-256" in signed.credentials
    assert values.used_secrets == {"It's a Secret to Everybody"}


def test_the_example_of_slack() -> None:
    # https://docs.slack.dev/authentication/verifying-requests-from-slack
    signed, _ = sign(
        {"recipe": "slack"}, "8f742231b10e8888abcd99yyyzzz85a5", 1531420618.9, body=SLACK_BODY
    )
    digest = "a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert get_header(signed, "X-Slack-Signature") == f"v0={digest}"
    assert get_header(signed, "X-Slack-Request-Timestamp") == "1531420618"


def test_the_example_of_standard_webhooks() -> None:
    # https://github.com/standard-webhooks/standard-webhooks
    key, message = (
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        {"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek"},
    )
    body = '{"test": 2432232314}'
    signed, _ = sign({"recipe": "standard-webhooks"}, key, 1614265330, body=body, headers=message)
    assert (
        get_header(signed, "webhook-signature") == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )
    assert get_header(signed, "webhook-timestamp") == "1614265330"
    assert get_header(sign({"recipe": "standard-webhooks"}, key)[0], "webhook-id").startswith(
        "msg_"
    )
    with pytest.raises(ToolError, match=r"hmac\.key is not a key of standard-webhooks"):
        sign({"recipe": "standard-webhooks"}, "not base64!")


# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html, the
# test suite of Signature Version 4, and
# https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
@pytest.mark.parametrize(
    ("settings", "fields", "signed_headers", "signature"),
    [
        (
            {},
            {
                "method": "GET",
                "urlTemplate": "https://iam.amazonaws.com/?Version=2010-05-08&Action=ListUsers",
                "headers": {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
            },
            "content-type;host;x-amz-date",
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
        ),
        (
            {"service": "service"},
            {"method": "GET", "urlTemplate": "https://example.amazonaws.com"},
            "host;x-amz-date",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            {"service": "service"},
            {
                "method": "GET",
                "urlTemplate": "https://example.amazonaws.com/?Param2=value2&Param1=value1",
            },
            "host;x-amz-date",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            {"service": "service"},
            {
                "urlTemplate": "https://example.amazonaws.com/",
                "body": "Param1=value1",
                "headers": {"Content-Type": "application/x-www-form-urlencoded"},
            },
            "content-type;host;x-amz-date",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ],
)
def test_the_examples_of_aws(
    settings: dict[str, str], fields: dict[str, Any], signed_headers: str, signature: str
) -> None:
    signed, _ = sign({**AWS, **settings}, AWS_KEY, AWS_TIME, **fields)
    scope = f"20150830/us-east-1/{settings.get('service', 'iam')}/aws4_request"
    assert (
        get_header(signed, "Authorization")
        == f"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{scope}, SignedHeaders={signed_headers},"
        f" Signature={signature}"
    )
    assert get_header(signed, "X-Amz-Date") == "20150830T123600Z"
    assert urlsplit(signed.url).netloc.endswith("amazonaws.com")


def test_s3_signs_the_hash_of_the_body() -> None:
    settings = {**AWS, "keyId": "AKIAIOSFODNN7EXAMPLE", "service": "s3"}
    url = "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J"
    key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    signed, _ = sign(settings, key, 1369353600.0, method="GET", urlTemplate=url)
    signature = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    assert get_header(signed, "Authorization").endswith(f"Signature={signature}")
    token = {"sessionToken": "${secret:TOKEN}"}
    assert get_header(sign({**settings, **token}, key)[0], "X-Amz-Security-Token") == "t0ken"


@pytest.mark.parametrize(
    ("hmac", "words"),
    [
        ({"recipe": "md5", "key": "k"}, "github-sha256"),
        ({"recipe": "slack"}, "key"),
        (
            {"recipe": "aws-sigv4", "key": "k", "keyId": "i"},
            "requires region and service for recipe aws-sigv4",
        ),
        ({"recipe": "slack", "key": "k", "region": "eu"}, "must not have region for recipe slack"),
        ({"recipe": "slack", "key": "${"}, "invalid placeholder"),
        ({"recipe": "slack", "key": "${file:k}"}, "only allowed as the whole body"),
        (AWS, "the header authorization is set twice"),
    ],
)
def test_invalid_recipes_are_rejected(hmac: dict[str, Any], words: str) -> None:
    auth = {"type": "bearer", "value": "${secret:TOKEN}"}
    with pytest.raises(ValidationError, match=words):
        HttpImpl.model_validate(
            {"method": "GET", "urlTemplate": "https://api.test/", "hmac": hmac, "auth": auth}
        )
