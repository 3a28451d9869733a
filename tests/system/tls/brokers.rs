//! Redis and NATS with TLS.

use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, IsCa};

use super::{Authority, VERSION_1, VERSION_1_KEY, certificates, text};
use crate::brokers::{BrokerStream, create_stream, skipped, to_nats, to_redis};
use crate::harness::{await_until, finish, releases, run, stop, sums, wait};
use crate::servers::{Client, Proxy, Server, installed};

const PASSWORD: &str = "hidden-password-of-redis";

/// Redis with a plain port for the test and an encrypted one, for which a certificate is required.
fn redis(case: &BrokerStream) -> Option<(Server, u16)> {
    let lab = &case.lab;
    certificates(lab);
    let port = crate::servers::free_port();
    let file = |name: &str| text(lab.path(name));
    let tls = [
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &file("server.pem"),
        "--tls-key-file",
        &file("server.key"),
        "--tls-ca-cert-file",
        &file("ca.pem"),
        "--tls-auth-clients",
        "yes",
        "--user",
        &format!("hushflow on >{PASSWORD} ~* +@all"),
    ]
    .map(String::from);
    let server = Server::redis_with(installed("redis-server")?, &lab.path("server"), &tls);
    Some((server, port))
}

const SECURED: &str = "tls = true
tls_roots = 'ca.pem'
tls_certificate = 'client.pem'
tls_key = 'client.key'
user = 'hushflow'
password_file = 'password'
";

impl BrokerStream {
    /// The pipeline over an address, with these fields in its source and in a sink to the same
    /// server.
    fn secured(&self, path: &str, fields: &str) -> std::path::PathBuf {
        let text = std::fs::read_to_string(self.pipeline(path)).unwrap();
        let sink = format!(
            "\n[[sinks]]\npath = '{path}'\nstream = 'releases'\n{fields}[[views]]\nname = 'v'\nworkload = 'prefix'\n"
        );
        self.lab.write(
            "pipeline.toml",
            text.replace("stream = 'rows'\n", &format!("stream = 'rows'\n{fields}")) + &sink,
        )
    }

    /// Runs with these fields until the run fails, and checks its message.
    #[track_caller]
    fn fails(&self, path: &str, fields: &str, parts: &[&str]) {
        let ended = finish(&mut run(&self.secured(path, fields), &self.state(), 1));
        assert!(!ended.err.contains("hidden"), "{}", ended.err);
        ended.failed(1, parts);
    }

    /// Runs with these fields for a moment, and checks that the server will be tried again.
    #[track_caller]
    fn waits(&self, path: &str, fields: &str, part: &str) {
        let run = self.start(&self.secured(path, fields), &[]);
        std::thread::sleep(Duration::from_millis(700));
        stop(&run);
        let errors = wait(run).err;
        assert!(errors.contains(part) && errors.contains("trying again"), "{errors}");
        assert!(!errors.contains("hidden") && !errors.contains("panicked"), "{errors}");
    }
}

fn file_of(path: &Path, name: &str) -> String {
    text(path.join(name))
}

#[test]
fn encrypted_redis_entries_count_once_through_cuts_and_renewed_secrets() {
    let case = BrokerStream::new();
    let Some((server, tls_port)) = redis(&case) else { return skipped("redis-server") };
    case.lab.write("password", format!("{PASSWORD}\n"));
    let proxy = Proxy::to(tls_port);
    let path = format!("redis://127.0.0.1:{}", proxy.port);
    let pipeline = case.secured(&path, SECURED);
    let run = case.start(&pipeline, &["--until-idle", "2s"]);
    let (mut client, mut admin) = (None, Client::new(server.port));
    for row in 0..case.rows.len() {
        to_redis(&case, server.port, &mut client, row);
        match row {
            1500 => {
                // A new password and a new certificate, which the next connection uses.
                case.lab.write("password", "hidden-and-new\n");
                admin.redis(&["ACL", "SETUSER", "hushflow", "resetpass", ">hidden-and-new"]);
                let file = |name| file_of(&case.lab.path(""), name);
                let files = [file("renewed.pem"), file("renewed.key")];
                let set = ["CONFIG", "SET", "tls-cert-file", &files[0], "tls-key-file", &files[1]];
                assert_eq!(admin.redis(&set), "+OK");
                proxy.cut();
            }
            row if row % 700 == 699 => proxy.cut(),
            _ => {}
        }
    }
    wait(run).succeeded();
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    let lines = admin.redis_texts(&["XRANGE", "releases", "-", "+"]);
    let epochs = lines.iter().filter_map(|line| line.strip_prefix("{\"epoch\":"));
    let mut epochs: Vec<u64> = epochs.map(|rest| rest.split(',').next().unwrap().parse().unwrap()).collect();
    assert!(epochs.is_sorted() && epochs.len().is_multiple_of(7), "{} lines", epochs.len());
    epochs.dedup();
    assert_eq!(epochs.len(), releases(&case.state()).len(), "every epoch is in the sink once");
}

#[test]
fn wrong_certificates_and_passwords_of_redis_are_reported() {
    let case = BrokerStream::new();
    let Some((server, tls_port)) = redis(&case) else { return skipped("redis-server") };
    case.lab.write("password", PASSWORD);
    let mut admin = Client::new(server.port);
    let path = format!("redis://127.0.0.1:{tls_port}");
    // Redis without TLS waits for the end of a command.
    let pipeline = case.secured(&format!("redis://127.0.0.1:{}", server.port), SECURED);
    std::fs::rename(&pipeline, case.lab.path("silent.toml")).unwrap();
    let silent = run(&case.lab.path("silent.toml"), &case.lab.path("silent"), 1).spawn().unwrap();
    let begun = Instant::now();
    let without = |field: &str| -> String {
        SECURED.lines().filter(|line| !line.starts_with(field)).map(|line| format!("{line}\n")).collect()
    };
    let with = |from: &str, to: &str| SECURED.replace(from, to);
    case.fails(&path, &with("'ca.pem'", "'stranger.pem'"), &["signed by a trusted root", "tls_roots"]);
    case.fails(&path, &without("tls_roots"), &["signed by a trusted root", "tls_roots"]);
    case.fails(&path, &with("'ca.pem'", "'missing.pem'"), &["missing.pem", "tls_roots", "can't be read"]);
    case.fails(&path, &with("'ca.pem'", "'password'"), &["tls_roots", "no certificate in PEM"]);
    let no_certificate = without("tls_certificate").replace("tls_key = 'client.key'\n", "");
    case.fails(&path, &no_certificate, &["it requires a client certificate: set tls_certificate"]);
    case.fails(&path, &with("'client.key'", "'server.key'"), &["tls_certificate and tls_key don't fit"]);
    case.fails(
        &path,
        &with("'client.", "'strange."),
        &["it refuses our certificate: it does not trust the root"],
    );
    case.fails(&path, &with("'client.", "'outdated."), &["it refuses our certificate: it has expired"]);
    case.fails(&path, &with("password_file = 'password'", "password_file = 'ca.pem'"), &["is unusable"]);
    case.fails(&path, &with("'password'", "'hidden-gone'"), &["password_file", "No such file"]);
    case.fails(&path, &with("'password'", "'gone.secret'"), &["password_file names the file", "gone.secret"]);
    case.fails(&path, &with("password_file = 'password'", "password_env = 'HIDDEN'"), &["password_env"]);
    case.lab.write("password", "hidden-but-wrong");
    case.fails(&path, SECURED, &["WRONGPASS", "see user and password_file"]);
    case.lab.write("password", PASSWORD);
    let set = |admin: &mut Client, name: &str| {
        let file = |end| file_of(&case.lab.path(""), &format!("{name}.{end}"));
        let set = ["CONFIG", "SET", "tls-cert-file", &file("pem"), "tls-key-file", &file("key")];
        assert_eq!(admin.redis(&set), "+OK");
    };
    set(&mut admin, "elsewhere");
    case.fails(&path, SECURED, &["elsewhere.example", "tls_server_name"]);
    set(&mut admin, "expired");
    case.fails(&path, SECURED, &["has expired"]);
    // Certificates that no client accepts, explained without names of a library.
    let authority = Authority::new(&case.lab, "ca");
    authority.issue_unsuitable(&case.lab, "authority", |parameters| {
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    });
    authority.issue_unsuitable(&case.lab, "nameless", |parameters| parameters.subject_alt_names.clear());
    case.lab.write("old.pem", VERSION_1);
    case.lab.write("old.key", VERSION_1_KEY);
    for (name, part) in [
        ("authority", "CA:TRUE"),
        ("nameless", "names no host in subjectAltName"),
        ("old", "X.509 version 1"),
    ] {
        set(&mut admin, name);
        case.fails(&path, SECURED, &[part]);
    }
    set(&mut admin, "server");
    let plain = "user = 'hushflow'\npassword_file = 'password'\n";
    case.waits(&path, plain, "if it requires TLS, add tls = true");
    await_until("a server without TLS has been silent for too long", || begun.elapsed().as_secs() >= 6);
    stop(&silent);
    let errors = wait(silent).err;
    assert!(errors.contains("has not ended in time") && errors.contains("trying again"), "{errors}");
}

/// NATS with the certificate of this name, whose encrypted port also takes plain connections, for
/// the test.
fn nats(case: &BrokerStream, security: &str, certificate: &str) -> Option<Server> {
    let lab = &case.lab;
    let server = Server::nats_with(installed("nats-server")?, &lab.path("server"), |port, storage| {
        let file = |name: &str| text(lab.path(name));
        let tls = format!(
            "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}\nallow_non_tls: true\n",
            file(&format!("{certificate}.pem")),
            file(&format!("{certificate}.key")),
            file("ca.pem")
        );
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {storage:?} }}\n{}",
            security.replace("TLS", &tls)
        );
        lab.write("nats.conf", config)
    });
    Some(server)
}

#[test]
fn encrypted_jetstream_messages_count_once_through_cuts() {
    let case = BrokerStream::new();
    let security = "TLS\nauthorization { users: [{ user: t, password: t }, \
                    { user: hushflow, password: hidden-of-nats }] }\nno_auth_user: t\n";
    certificates(&case.lab);
    let Some(server) = nats(&case, security, "server") else { return skipped("nats-server") };
    case.lab.write("password", "hidden-of-nats");
    create_stream(server.port);
    let proxy = Proxy::to(server.port);
    let path = format!("nats://127.0.0.1:{}", proxy.port);
    let run = case.start(&case.secured(&path, SECURED), &["--until-idle", "2s"]);
    let mut client = None;
    for row in 0..case.rows.len() {
        to_nats(&case, server.port, &mut client, row);
        if row % 700 == 699 {
            proxy.cut();
        }
    }
    await_until("the rows are read", || releases(&case.state()).len() >= 38);
    wait(run).succeeded();
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    case.lab.write("password", "hidden-and-wrong");
    case.fails(&path, SECURED, &["Authorization Violation: see user and password_file"]);
    let other = SECURED.replace("'ca.pem'", "'stranger.pem'");
    case.fails(&path, &other, &["signed by a trusted root"]);
    let anonymous = "tls = true\ntls_roots = 'ca.pem'\n";
    case.fails(&path, anonymous, &["it requires a client certificate: set tls_certificate"]);
    for name in ["strange", "outdated"] {
        let other = SECURED.replace("'client.", &format!("'{name}."));
        case.fails(&path, &other, &["it refuses our certificate"]);
    }
    drop(server);
    for (certificate, part) in [("elsewhere", "elsewhere.example"), ("expired", "has expired")] {
        let server = nats(&case, security, certificate).expect("it is installed");
        case.fails(&format!("nats://127.0.0.1:{}", server.port), SECURED, &[part]);
    }
}
