//! Sockets as sources: lines from one peer at a time. Schemes: `tcp://`, `tcp-listen://`,
//! `unix://`, `unix-listen://`. Input can't be read again, so it always goes through the journal.

mod connection;
mod encrypted;
mod entry;
mod listener;
mod serve;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::journal::{Intake, IntakeBuffer, JournalSession};
use super::security::{TLS_CLIENT_FIELDS, TLS_FIELDS, TLS_LISTENING_FIELDS, tls_client, tls_server};
use super::wire::has_port;
use super::{
    AllowedFormats, Journaling, Origin, OriginRequest, SourceConfig, SourceError, System, SystemSection,
    report_source,
};
use crate::control::Control;
use crate::document::definition::{FieldDefinition, FieldType};
use crate::security::{TlsClient, TlsServer};
use connection::PeerConnections;
use serve::serve;

pub(super) const SYSTEM: System = System {
    schemes: &["tcp", "tcp-listen", "unix", "unix-listen"],
    path: "tcp://host:port, tcp-listen://address:port, unix:///path, unix-listen:///path",
    journaling: Journaling::Always,
    source_fields: &[
        FieldDefinition::with_default(
            "acknowledge",
            FieldType::Flag,
            "false",
            "true",
            "Whether the peer receives the number of records that are safe on disk.",
        )
        .costs("The number of records is private, and the peer learns it."),
        FieldDefinition::optional(
            "key",
            FieldType::Text,
            "everyone who reaches the address can send",
            "\"source.key\"",
            "Key file of `hushflow key`, whose token peers must send, for tcp-listen:// and unix-listen://.",
        ),
        FieldDefinition::with_default(
            "expose",
            FieldType::Flag,
            "false",
            "true",
            "Whether tcp-listen:// may listen on an address that other machines can reach.",
        ),
    ],
    source: Some(source),
    security: &[
        (TLS_FIELDS, &["tcp", "tcp-listen"]),
        (TLS_CLIENT_FIELDS, &["tcp"]),
        (TLS_LISTENING_FIELDS, &["tcp-listen"]),
    ],
    ..System::NONE
};

const NO_KEY: &str = "a key is only for tcp-listen:// and unix-listen://: leave it out";
const NO_EXPOSE: &str = "other machines can reach only tcp-listen://: leave it out";

const EXPOSE: &str = "other machines can reach this address and send records: listen on 127.0.0.1, or add expose = true, preferably with \
    key = \"source.key\" (see hushflow key source.key)";

/// A socket that receives rows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SocketSource {
    /// Address of the socket.
    address: SocketAddress,
    /// Whether the source listens for peers, one after the other, instead of connecting to one.
    listens: bool,
    /// `acknowledge`: whether the number of journaled records is sent back to the peer.
    acknowledge: bool,
    /// `key`: for a listening socket, the key file whose token peers must send.
    key: Option<PathBuf>,
    /// `expose`: whether it may listen on an address that other machines can reach.
    expose: bool,
    /// `tls`: how connections are encrypted, if they are.
    tls: Option<SocketTls>,
}

/// Which end of an encrypted connection the source is, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SocketTls {
    Connecting(TlsClient),
    Listening(TlsServer),
}

impl SocketSource {
    /// Whether peers must show that they may send, by a token or a certificate.
    fn admits_only_some(&self) -> bool {
        self.key.is_some() || is_certified(&self.tls)
    }
}

fn is_certified(tls: &Option<SocketTls>) -> bool {
    matches!(tls, Some(SocketTls::Listening(TlsServer { client_roots: Some(_), .. })))
}

impl fmt::Display for SocketSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listens = if self.listens { "-listen" } else { "" };
        match &self.address {
            SocketAddress::Tcp(address) => write!(f, "tcp{listens}://{address}"),
            SocketAddress::Unix(path) => write!(f, "unix{listens}://{}", path.display()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SocketAddress {
    /// `host:port`.
    Tcp(String),
    /// A path in the file system.
    Unix(PathBuf),
}

/// Reads the section of a socket source.
fn source(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
    let section = settings.section;
    let acknowledge = section.flag("acknowledge").unwrap_or(false);
    let expose = section.flag("expose").unwrap_or(false);
    let key = section.text("key").map(|key| settings.base.join(key.value));
    let listens = settings.scheme.ends_with("-listen");
    let address = match settings.scheme {
        "tcp" | "tcp-listen" => has_port(settings.rest).then(|| SocketAddress::Tcp(settings.rest.into())),
        _ => (!settings.rest.is_empty()).then(|| SocketAddress::Unix(settings.base.join(settings.rest))),
    };
    let tls = match settings.scheme {
        "tcp" => tls_client(settings).map(SocketTls::Connecting),
        "tcp-listen" => tls_server(settings).map(SocketTls::Listening),
        _ => None,
    };
    let Some(address) = address else {
        report_source(settings.path);
        return None;
    };
    if !listens {
        section.refuse("key", NO_KEY);
    }
    match &address {
        SocketAddress::Tcp(address) if listens => {
            if !expose && !is_loopback(address) {
                settings.path.report(EXPOSE);
                return None;
            }
            if expose && acknowledge && key.is_none() && !is_certified(&tls) {
                section.refuse(
                    "acknowledge",
                    "the number of records is private, and acknowledgements would reveal it to everyone who can reach the address: add key = \"source.key\" or tls_client_roots",
                );
            }
        }
        _ => section.refuse("expose", NO_EXPOSE),
    }
    Some(Arc::new(SocketSource { address, listens, acknowledge, key, expose, tls }))
}

/// Whether `host:port` is `localhost` or a loopback address; names are not resolved.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

impl SourceConfig for SocketSource {
    fn name(&self) -> String {
        self.to_string()
    }

    fn formats(&self) -> AllowedFormats {
        AllowedFormats::TEXT
    }

    fn journaling(&self) -> Journaling {
        SYSTEM.journaling
    }

    fn open(&self, _opening: &OriginRequest<'_>) -> Result<Box<dyn Origin>, SourceError> {
        Err(SourceError::NeedsRun)
    }

    fn take_in(&self, session: JournalSession, control: &Control) -> io::Result<Intake> {
        let connections = PeerConnections::open(self, control)?;
        let peer = connections.peer();
        let (ingest, shape) = (session.ingest(), session.shape().clone());
        let listener = Box::new(move |number| peer.send_number(number));
        let read = move |buffer: &IntakeBuffer| serve(buffer, connections, &ingest, &shape);
        Intake::start(session, control, true, Some(listener), read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::any::Any;

    use crate::connect::fake::source_of;
    use crate::connect::{DynamicEq, Input};

    #[test]
    fn sockets_connect_or_listen() {
        let check = |source: &str, expected: Option<(SocketAddress, bool)>| {
            let expected = expected.map(|(address, listens)| {
                let socket = SocketSource {
                    address,
                    listens,
                    acknowledge: false,
                    key: None,
                    expose: false,
                    tls: None,
                };
                Input { system: &SYSTEM, source: Arc::new(socket) }
            });
            assert_eq!(source_of(source).ok().map(|(input, _)| input), expected, "{source}");
        };
        let tcp = || SocketAddress::Tcp("localhost:7000".into());
        check("path = 'tcp://localhost:7000', format = 'csv'", Some((tcp(), false)));
        check("path = 'tcp-listen://localhost:7000', format = 'csv'", Some((tcp(), true)));
        check("path = 'unix:///run/x', format = 'csv'", Some((SocketAddress::Unix("/run/x".into()), false)));
        check("path = 'unix-listen://x', format = 'csv'", Some((SocketAddress::Unix("dir/x".into()), true)));
        check("path = 'tcp://:7000', format = 'csv'", None);
        check("path = 'tcp://localhost:99999', format = 'csv'", None);
        check("path = 'unix://', format = 'csv'", None);
        check("path = 'tcp://localhost:1'", None);
    }

    #[test]
    fn a_source_is_reachable_from_other_machines_only_if_exposed() {
        let check = |source: &str, expected: Result<SocketSource, &str>| {
            let found = source_of(&format!("{source}, format = 'csv'")).map(|(input, _)| input);
            match (found, expected) {
                (Ok(found), Ok(expected)) => {
                    assert!(expected.equals(&*found.source as &dyn Any), "{source}: {found:?}")
                }
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                (found, _) => panic!("{source}: {found:?}"),
            }
        };
        let listening = |address: &str| SocketSource {
            address: SocketAddress::Tcp(address.into()),
            listens: true,
            acknowledge: false,
            key: None,
            expose: false,
            tls: None,
        };
        check("path = 'tcp-listen://localhost:7000'", Ok(listening("localhost:7000")));
        check("path = 'tcp-listen://[::1]:7000'", Ok(listening("[::1]:7000")));
        for address in ["0.0.0.0", "[::]", "10.0.0.1", "example.org", "127.0.0.1.example.org"] {
            check(&format!("path = 'tcp-listen://{address}:7000'"), Err("expose = true"));
        }
        let open = "path = 'tcp-listen://0.0.0.0:7000', expose = true";
        let exposed = SocketSource { expose: true, ..listening("0.0.0.0:7000") };
        check(open, Ok(exposed.clone()));
        check(&format!("{open}, acknowledge = true"), Err("add key"));
        let keyed = SocketSource { acknowledge: true, key: Some("dir/k".into()), ..exposed };
        check(&format!("{open}, acknowledge = true, key = 'k'"), Ok(keyed));
        check("path = 'tcp://localhost:7000', key = 'k'", Err("leave it out"));
        check("path = 'unix-listen://x', expose = true", Err("leave it out"));
        check("path = 'a.csv', expose = true", Err("leave it out"));
    }
}
