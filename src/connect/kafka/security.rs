//! Secures connections to Kafka, with the settings that all systems share. The client library uses
//! OpenSSL for TLS and for SCRAM.
//!
//! Secrets and certificates are read when a client is made, so a rotated one is used after a
//! connection was lost. The library keeps a copy of the password while the client lives.

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
use crate::connect::wire::BrokerServer;
use crate::control::Control;
use crate::security::SecurityError;

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
        // The places where systems have their roots, wherever OpenSSL was built.
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

/// Messages of the client library about its connections.
#[derive(Clone, Default)]
pub(super) struct ConnectionNotes(Arc<Mutex<Option<String>>>);

impl ConnectionNotes {
    /// Returns why no connection can be made until a person corrects something, if that was said.
    pub(super) fn refusal(&self) -> Option<String> {
        reason(self.0.lock().unwrap_or_else(PoisonError::into_inner).as_deref()?)
    }
}

/// Returns what a note of the library means for a person; `None` if another attempt may succeed.
fn reason(note: &str) -> Option<String> {
    // A connection that ended too early, which the library blames on what it was doing.
    if note.contains("Local: ") {
        return None;
    }
    if note.contains("mechanism handshake failed") {
        return Some("the server does not offer this mechanism: choose another one in sasl".into());
    }
    if note.contains("SASL authentication error") || note.contains("Authentication failed") {
        return Some("the server refuses the user or the password".into());
    }
    if !note.contains("certificate") {
        return None;
    }
    // The words of OpenSSL, without its numbers and without advice for users of the library.
    let problem = note.rsplit("routines::").next().unwrap_or_default();
    let problem: String = problem.split([':', '(']).next().unwrap_or_default().chars().take(80).collect();
    Some(format!("TLS failed: {problem}: see tls_roots, and tls_certificate for our own certificate"))
}

impl ClientContext for ConnectionNotes {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        if (level as i32) <= RDKafkaLogLevel::Error as i32 && fac == "FAIL" {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.into());
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
            let found = reason(note);
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
            Some("TLS failed: certificate verify failed"),
        );
        check("h:1: SSL handshake failed: error:0A00010B:SSL routines::wrong version number", None);
        check("h:1: Connect to ipv4#127.0.0.1:1 failed: Connection refused", None);
    }
}
