//! Decides by the first bytes of a connection whether a peer may send to a listening source.
//!
//! Any web page can make a browser send requests to this machine, and their lines would count as
//! rows. So a connection that begins like HTTP, TLS or other binary data is refused before any of
//! it is read as rows. If the source has a key, the first line must be its token
//! ([`SharedKey::token`](crate::key::SharedKey::token)), which is not a row.

use crate::key::Token;

/// Maximum number of bytes needed to decide on a connection.
pub(super) const LONGEST: usize = 128;

const HTTP: &str =
    "this is not an HTTP server, and a first line that begins with an HTTP method is not taken";
const BINARY: &str = "no text begins like this, and TLS needs tls = true at this source";
const TOKEN: &str =
    "the first line must be the token that `hushflow key FILE --token` prints for the key of this source";

/// The methods of RFC 9110, further ones of browsers, and the first word of HTTP/2.
const METHODS: [&str; 10] =
    ["GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "CONNECT ", "OPTIONS ", "TRACE ", "PATCH ", "PRI "];

/// Decision on the first bytes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PeerAdmission {
    /// More bytes are needed.
    Undecided,
    /// The connection is accepted, and rows begin after this number of bytes.
    Open(usize),
    /// The connection is refused, with the reason.
    Refused(&'static str),
}

/// Decides on the bytes that a connection has sent so far.
pub(super) fn judge(bytes: &[u8], token: Option<&Token>) -> PeerAdmission {
    let Some(&first) = bytes.first() else { return PeerAdmission::Undecided };
    if (first.is_ascii_control() && !first.is_ascii_whitespace()) || first == 0x0c {
        return PeerAdmission::Refused(BINARY);
    }
    if METHODS.iter().any(|method| bytes.starts_with(method.as_bytes())) {
        return PeerAdmission::Refused(HTTP);
    }
    let Some(token) = token else {
        let begins = METHODS.iter().any(|method| method.as_bytes().starts_with(bytes));
        return if begins { PeerAdmission::Undecided } else { PeerAdmission::Open(0) };
    };
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
        // A carriage return may follow the digits.
        return if bytes.len() > Token::LENGTH + 1 {
            PeerAdmission::Refused(TOKEN)
        } else {
            PeerAdmission::Undecided
        };
    };
    let line = &bytes[..end];
    match token.agrees(line.strip_suffix(b"\r").unwrap_or(line)) {
        true => PeerAdmission::Open(end + 1),
        false => PeerAdmission::Refused(TOKEN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::SharedKey;

    /// Checks every prefix up to the first one that decides.
    fn judged(bytes: &[u8], token: Option<&Token>) -> PeerAdmission {
        let undecided = |length: &usize| judge(&bytes[..*length], token) == PeerAdmission::Undecided;
        let length = (0..=bytes.len()).find(|length| !undecided(length)).unwrap_or(bytes.len());
        assert!(length <= LONGEST, "{length} bytes decide nothing");
        judge(&bytes[..length], token)
    }

    #[test]
    fn http_and_binary_data_are_refused_at_once() {
        for method in METHODS {
            let request = format!("{method}/ HTTP/1.1\r\nHost: 127.0.0.1:7000\r\n\r\nx\n1\n");
            assert_eq!(judged(request.as_bytes(), None), PeerAdmission::Refused(HTTP), "{method}");
        }
        // First bytes of TLS, STUN and gzip, and zeros.
        for hello in [&b"\x16\x03\x01\x02\x00\x01"[..], b"\x00\x03\x00\x50", b"\x1f\x8b\x08", &[0; 24]] {
            assert_eq!(judged(hello, None), PeerAdmission::Refused(BINARY));
        }
    }

    #[test]
    fn rows_are_admitted() {
        for rows in
            [&b"event,key,x\n"[..], b"{\"x\": 1}\n", b"\n\n", b" {}", b"\xef\xbb\xbfx\n", b"1", b"PUTS,1\n"]
        {
            assert_eq!(judged(rows, None), PeerAdmission::Open(0));
        }
        for beginning in [&b""[..], b"G", b"OPTIONS", b"PRI"] {
            assert_eq!(judged(beginning, None), PeerAdmission::Undecided);
        }
    }

    #[test]
    fn only_the_token_opens_a_source_with_a_key() {
        let directory = tempfile::tempdir().unwrap();
        let [own, other] =
            ["a", "b"].map(|name| SharedKey::create(&directory.path().join(name)).unwrap().token());
        let check = |line: &str, expected| {
            assert_eq!(judged(line.as_bytes(), Some(&own)), expected);
        };
        let digits = own.digits();
        check(&format!("{digits}\nx\n1\n"), PeerAdmission::Open(65));
        check(&format!("{digits}\r\nx\n1\n"), PeerAdmission::Open(66));
        check(digits, PeerAdmission::Undecided);
        for line in [other.digits(), &digits[1..], "", "x,y"] {
            check(&format!("{line}\nx\n"), PeerAdmission::Refused(TOKEN));
        }
        check(&format!("{digits}0"), PeerAdmission::Undecided);
        check(&format!("{digits}00"), PeerAdmission::Refused(TOKEN));
        check(&"1".repeat(200), PeerAdmission::Refused(TOKEN));
        check("POST / HTTP/1.1\r\n", PeerAdmission::Refused(HTTP));
    }
}
