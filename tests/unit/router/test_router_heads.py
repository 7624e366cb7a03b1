"""Heads of engine answers: what the Connection header takes away, and when it closes."""

from forebay.router.heads import parse_response_head


def test_headers_that_connection_names_are_not_passed_on() -> None:
    head = parse_response_head(
        b"HTTP/1.1 200 OK\r\nX-Secret: 1\r\nX-Kept: 2\r\nContent-Length: 1\r\n"
        b"Connection: x-secret, Content-Length\r\nx-SECRET: 3",
        to_head_request=False,
    )
    assert head.lines == [b"X-Kept: 2", b"Content-Length: 1"]
    assert head.length == 1


def test_only_the_whole_word_close_ends_a_connection() -> None:
    start = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: "
    assert parse_response_head(start + b"x-disclosed", to_head_request=False).keep_alive
    assert not parse_response_head(start + b"te , Close", to_head_request=False).keep_alive
