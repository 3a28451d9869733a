//! Secures connections to Kafka, with the settings that all systems share. The client library uses
//! OpenSSL for TLS and for SCRAM.
//!
//! The library reports only that a certificate was refused, not which side refused it or why. So
//! this module repeats the handshake with the same server to find the reason, and reports it in the
//! same words as for the other systems.
//!
//! Secrets and certificates are read when a client is made, so a rotated one is used after a
//! connection was lost. The library keeps a copy of the password while the client lives.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{NoCustomPartitioner, ProducerContext};

use super::sasl::{MECHANISMS, Mechanism};
use super::topic::Topic;
use crate::connect::SystemSection;
use crate::connect::error::{RequestError, refusal, transient};
use crate::connect::wire::BrokerServer;
use crate::control::Control;
use crate::security::{SecurityError, TlsProblem};

/// An ApiVersions request, version 0, without a client id.
const VERSIONS: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff];

/// Reads `sasl`, and reports settings that Kafka does not have.
pub(super) fn mechanism(settings: &SystemSection<'_, '_>, server: &BrokerServer) -> Option<Mechanism> {
    let section = settings.section;
    let mechanism = section.word("sasl", MECHANISMS);
    let report = |key, message: &str| {
        section.refuse(key, message);
        section.has(key)
    };
    let is_refused = match (&server.login.user, &server.login.password) {
        (None, None) => report("sasl", "only a user has a password to prove: add user, or leave it out"),
        (None, Some(_)) => ["password_env", "password_file"]
            .iter()
            .any(|key| report(key, "a password needs its user: add user")),
        _ if mechanism == Some(Mechanism::Plain) && server.tls.is_none() => report(
            "sasl",
            "this mechanism sends the password as it is: add tls = true, or use sasl = \"scram-sha-512\"",
        ),
        _ => false,
    };
    let is_renamed = report(
        "tls_server_name",
        "the servers of a Kafka cluster are checked by the names that the cluster gives them: leave it out",
    );
    (!is_refused && !is_renamed).then(|| mechanism.unwrap_or_default())
}

/// Adds the settings that secure the connections of a client.
pub(super) fn secure(
    config: &mut ClientConfig,
    topic: &Topic,
    control: &Control,
) -> Result<(), SecurityError> {
    let BrokerServer { tls, login, .. } = &topic.server;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let protocol = match (tls.is_some(), login.user.is_some()) {
        (false, false) => "plaintext",
        (true, false) => "ssl",
        (false, true) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    };
    config.set("security.protocol", protocol);
    if let Some(tls) = tls {
        // "probe" finds the usual directories of root certificates under any build of OpenSSL.
        config.set("ssl.ca.location", tls.roots.as_deref().map_or_else(|| "probe".into(), text));
        if let Some(identity) = &tls.identity {
            config.set("ssl.certificate.location", text(&identity.certificate));
            config.set("ssl.key.location", text(&identity.key));
        }
    }
    if let (Some(user), Some(password)) = (&login.user, &login.password) {
        let name = match topic.mechanism {
            Mechanism::Plain => "PLAIN",
            Mechanism::Scram256 => "SCRAM-SHA-256",
            Mechanism::Scram512 => "SCRAM-SHA-512",
        };
        config.set("sasl.mechanism", name).set("sasl.username", user);
        config.set("sasl.password", password.read(control)?.text());
    }
    Ok(())
}

/// The last message of the client library about a connection, and the settings to diagnose it.
#[derive(Clone)]
pub(super) struct ConnectionNotes {
    last: Arc<Mutex<Option<String>>>,
    topic: Topic,
    control: Control,
}

impl ConnectionNotes {
    pub(super) fn new(topic: &Topic, control: &Control) -> Self {
        ConnectionNotes { last: Arc::default(), topic: topic.clone(), control: control.clone() }
    }

    /// Whether the last message may be about a fault that only a person can fix.
    pub(super) fn may_last(&self) -> bool {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).as_deref().and_then(reason).is_some()
    }

    /// Returns why no connection is possible until a person fixes a fault; `None` to try again.
    pub(super) fn refusal(&self) -> Option<RequestError> {
        let note = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        match reason(&note)? {
            Reason::Login(words) => {
                let words = format!("{words}: {}, and sasl", self.topic.server.login.hint());
                Some(self.refused(&words))
            }
            Reason::Mechanism => {
                Some(self.refused("the server does not offer this mechanism: choose another one in sasl"))
            }
            Reason::Tls(words) => {
                let diagnosed = diagnosed(&self.topic.server, &note, &self.control).map(RequestError::from);
                diagnosed.or_else(|| words.map(|words| self.refused(&words)))
            }
        }
    }

    /// Returns the reason why the library could not make a client, in its words or ours.
    pub(super) fn client_error(&self, words: &str) -> RequestError {
        match self.topic.server.tls.as_ref().map(|tls| tls.config()) {
            Some(Err(error)) => error.into(),
            _ if words.contains("ssl.") => self.refused(words),
            _ => transient(words),
        }
    }

    /// Returns an error that a retry does not fix.
    pub(super) fn refused(&self, words: &str) -> RequestError {
        refusal(self.topic.name(), words)
    }
}

/// Cause of a library message that a person must fix.
enum Reason {
    Login(&'static str),
    Mechanism,
    /// A fault of TLS, with the library's reason if it names a certificate.
    Tls(Option<String>),
}

/// Returns the fault that a library message reports; `None` if another attempt may succeed.
fn reason(note: &str) -> Option<Reason> {
    // The connection ended too early. The library names the step in which it ended as the cause.
    if note.contains("Local: ") {
        return None;
    }
    if note.contains("mechanism handshake failed") {
        return Some(Reason::Mechanism);
    }
    if note.contains("SASL authentication error") || note.contains("Authentication failed") {
        return Some(Reason::Login("the server refuses the user or the password"));
    }
    // The text of OpenSSL, without its numbers and without advice for programmers.
    let (_, problem) = note.rsplit_once("routines::")?;
    let problem: String =
        problem.split([':', '(']).next().unwrap_or_default().trim().chars().take(80).collect();
    if ["certificate", "unknown ca", "access denied"].iter().any(|sure| problem.contains(sure)) {
        let words =
            format!("TLS failed: {problem}: see tls_roots, and tls_certificate for our own certificate");
        return Some(Reason::Tls(Some(words)));
    }
    // This is how older servers ask for a certificate.
    problem.contains("alert").then_some(Reason::Tls(None))
}

/// Makes a handshake with the server that a note is about, and returns why it fails. `None` if it
/// succeeds, or if another attempt may succeed.
fn diagnosed(server: &BrokerServer, note: &str, control: &Control) -> Option<SecurityError> {
    let (_, address) = note.split_once("ssl://")?;
    let address = address.split('/').next()?.into();
    let failed = judged(&BrokerServer { address, ..server.clone() }, control).err()?;
    let error = failed.downcast::<SecurityError>().ok().filter(SecurityError::is_lasting)?;
    Some(match error {
        SecurityError::Peer { peer, problem: TlsProblem::WrongName { names } } => {
            let words = format!("it is for {names}: name the server so in path and in advertised.listeners");
            SecurityError::Peer { peer, problem: TlsProblem::Certificate(words) }
        }
        error => error,
    })
}

/// Connects, and waits for an answer. With TLS 1.3 a client learns that its certificate was refused
/// only when it reads.
fn judged(server: &BrokerServer, control: &Control) -> io::Result<()> {
    let mut connection = server.connect(control)?;
    connection.send(&VERSIONS)?;
    connection.skip(1)
}

impl ClientContext for ConnectionNotes {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        if (level as i32) <= RDKafkaLogLevel::Error as i32 && fac == "FAIL" {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.into());
        }
    }

    fn error(&self, _: KafkaError, _: &str) {}
}

impl ConsumerContext for ConnectionNotes {}

impl ProducerContext<NoCustomPartitioner> for ConnectionNotes {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, _: Self::DeliveryOpaque) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lasting_problems_end_a_run() {
        let check = |note: &str, expected: Option<&str>| {
            let found = reason(note).map(|reason| match reason {
                Reason::Login(words) => words.into(),
                Reason::Mechanism => "another one in sasl".into(),
                Reason::Tls(words) => words.unwrap_or_default(),
            });
            assert_eq!(found.is_some(), expected.is_some(), "{note}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{note}");
        };
        let user = Some("the user or the password");
        check("h:1: SASL authentication error: wrong user or password (after 42ms in state AUTH_REQ)", user);
        check("h:1: SASL authentication error: Authentication failed: Invalid username or password", user);
        check(
            "h:1: SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's supported mechanisms: X",
            Some("another one in sasl"),
        );
        check(
            "h:1: SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's supported mechanisms: (n/a)",
            None,
        );
        check(
            "h:1: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate could not be verified",
            Some("TLS failed: certificate verify failed: see"),
        );
        let refused = |alert| {
            format!("ssl://h:1/1: Receive failed: error:0A:SSL routines::{alert}: SSL alert number 1")
        };
        check(&refused("tlsv13 alert certificate required"), Some("certificate required: see"));
        check(&refused("tlsv1 alert unknown ca"), Some("unknown ca: see"));
        check(&refused("sslv3 alert handshake failure"), Some(""));
        check("h:1: SSL handshake failed: error:0A00010B:SSL routines::wrong version number", None);
        check("h:1: Connect to ipv4#127.0.0.1:1 failed: Connection refused", None);
    }
}
