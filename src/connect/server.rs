//! Server addresses in paths, `[user:password@]host[:port]`, and names of streams.

use std::fmt;

use crate::document::Section;

/// A server, and our credentials for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BrokerServer {
    /// `host:port`, or several of them separated by commas.
    pub(super) address: String,
    pub(super) credentials: Option<Credentials>,
}

/// Login data of a server.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    /// The user, if one is named.
    pub(super) user: Option<String>,
    /// The password or token.
    pub(super) secret: String,
}

impl fmt::Debug for Credentials {
    /// Formats the credentials without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl BrokerServer {
    /// Parses the part after `scheme://` into the server, with the given default port, and the part
    /// after a slash. None if it can't be parsed.
    pub(super) fn of(rest: &str, port: u16) -> Option<(Self, &str)> {
        let (credentials, place) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((credentials, place)) => {
                let (user, secret) = match credentials.split_once(':') {
                    Some((user, secret)) => (Some(user).filter(|user| !user.is_empty()), secret),
                    None => (None, credentials),
                };
                (Some(Credentials { user: user.map(String::from), secret: secret.into() }), place)
            }
        };
        let (place, behind) = place.split_once('/').unwrap_or((place, ""));
        let address = if has_port(place) { place.into() } else { format!("{place}:{port}") };
        // An invalid port, but not an IPv6 address.
        let odd_port = !has_port(place) && place.contains(':') && !place.ends_with(']');
        (has_port(&address) && !odd_port).then_some((BrokerServer { address, credentials }, behind))
    }
}

/// Whether an address ends with a port.
pub(crate) fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Reads `stream`: the name of a stream, without blanks and characters that the system forbids.
pub(super) fn stream(section: &Section<'_>, forbidden: &str) -> Option<String> {
    let stream = section.require("stream", section.text("stream"), "stream = \"flights\"")?;
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || forbidden.contains(c);
    if stream.value.contains(is_odd) || stream.value.is_empty() {
        stream.report(format!("found {:?}, expected the name of a stream", stream.value));
        return None;
    }
    Some(stream.value.into())
}
