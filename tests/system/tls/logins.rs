//! The ways to log in to NATS, and that no secret is written anywhere.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command};

use super::{certificates, connect, get, text};
use crate::brokers::{BrokerStream, create_stream, skipped, to_nats};
use crate::harness::{Lab, await_until, finish, gather, hushflow, releases, run, stop, wait};
use crate::servers::{Server, free_port, installed};

/// A user's NKey in the documentation of NATS, and its seed.
const NKEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";
const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";

fn nats(lab: &Lab, security: &str) -> Option<Server> {
    let program = installed("nats-server")?;
    Some(Server::nats_with(program, &lab.path("server"), |port, storage| {
        let head = format!("listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {storage:?} }}\n");
        lab.write("nats.conf", head + security)
    }))
}

impl BrokerStream {
    fn with_login(&self, port: u16, login: &str) -> std::path::PathBuf {
        let text = std::fs::read_to_string(self.pipeline(&format!("nats://127.0.0.1:{port}"))).unwrap();
        self.lab.write("pipeline.toml", text.replace("stream = 'rows'", &format!("stream = 'rows'\n{login}")))
    }
}

#[test]
fn nats_accepts_keys_and_tokens_by_reference() {
    let case = BrokerStream::new();
    let keys = format!(
        "authorization {{ users: [{{ user: t, password: t }}, {{ nkey: {NKEY} }}] }}\nno_auth_user: t\n"
    );
    let Some(server) = nats(&case.lab, &keys) else { return skipped("nats-server") };
    create_stream(server.port);
    let mut client = None;
    (0..500).for_each(|row| to_nats(&case, server.port, &mut client, row));
    case.lab.write("seed", format!("{SEED}\n"));
    let until_idle = ["--until-idle", "500ms"];
    let accepted = |server: &Server, login: &str| {
        let ended = finish(run(&case.with_login(server.port, login), &case.state(), 1).args(until_idle));
        ended.succeeded();
    };
    let refused = |server: &Server, login: &str, parts: &[&str]| {
        let ended = finish(run(&case.with_login(server.port, login), &case.state(), 1).args(until_idle));
        assert!(!ended.err.contains(SEED) && !ended.err.contains("hidden"), "{}", ended.err);
        ended.failed(1, parts);
    };
    accepted(&server, "nkey_file = 'seed'");
    case.lab.write("wrong", SEED.replace('Y', "Z"));
    refused(&server, "nkey_file = 'wrong'", &["the seed of a NATS user"]);
    refused(&server, "credentials_file = 'seed'", &["a NATS credentials file"]);
    refused(&server, "nkey_env = 'SUHIDDEN'", &["nkey_env"]);
    refused(&server, "tls = true", &["the server has no TLS"]);
    drop(server);
    let token = "authorization { token: hidden-token }\n";
    let mut server = nats(&case.lab, token).unwrap();
    case.lab.write("token", "hidden-token\n");
    accepted(&server, "token_file = 'token'");
    case.lab.write("token", "hidden-mistake\n");
    refused(&server, "token_file = 'token'", &["Authorization Violation: see token_file"]);
    server.kill();
}

#[test]
fn no_secret_is_written() {
    let case = BrokerStream::new();
    let authority = certificates(&case.lab);
    let keys = format!(
        "authorization {{ users: [{{ user: t, password: t }}, {{ nkey: {NKEY} }}] }}\nno_auth_user: t\n"
    );
    let Some(server) = nats(&case.lab, &keys) else { return skipped("nats-server") };
    create_stream(server.port);
    let mut client = None;
    (0..1000).for_each(|row| to_nats(&case, server.port, &mut client, row));
    let pipeline = case.with_login(server.port, "nkey_env = 'SECRET_OF_NATS'");
    let sink = "\n[[sinks]]\npath = 'redis://127.0.0.1:1'\nstream = 's'\npassword_env = 'SECRET_OF_REDIS'\n\
                [[sinks]]\npath = 'tables'\nformat = 'parquet'\n[[views]]\nname = 'v'\nworkload = 'prefix'\n";
    std::fs::write(&pipeline, std::fs::read_to_string(&pipeline).unwrap() + sink).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let file = |name| text(case.lab.path(name));
    let client = authority.client(&case.lab, None);
    let start = |command: &mut Command| {
        command.env("SECRET_OF_NATS", SEED).env("SECRET_OF_REDIS", "hidden-password");
        command.args(["--tls-certificate", &file("server.pem"), "--tls-key", &file("server.key")]);
        command.spawn().unwrap()
    };
    let mut written = Vec::new();
    let mut end = |child: Child, served: Vec<String>| {
        for name in ["cmdline", "comm", "status"] {
            written.extend(std::fs::read(format!("/proc/{}/{name}", child.id())).unwrap());
        }
        stop(&child);
        let ended = wait(child);
        written.extend([served.concat(), ended.out, ended.err].concat().into_bytes());
    };
    let mut command = run(&pipeline, &case.state(), 2);
    command.args(["--log", "debug", "--log-format", "json", "--json", "--counters", "--metrics", &address]);
    let run = start(&mut command);
    await_until("epochs are published", || releases(&case.state()).len() >= 3);
    let paths = ["/metrics", "/healthz", "/readyz"];
    end(run, paths.map(|path| get(&client, &address, path).unwrap()).into());
    let state = file("state");
    let mut command = hushflow(["serve", &text(pipeline), "--state", &state, "--web", &address]);
    let page = start(&mut command);
    await_until("the page is served", || TcpStream::connect(&address).is_ok());
    let paths = ["/", "/page.js", "/page.css", "/about", "/readings?of=records", "/healthz", "/readyz"];
    let mut served: Vec<String> = paths.map(|path| get(&client, &address, path).unwrap()).into();
    let mut events = connect(&client, &address);
    write!(events, "GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let lines = BufReader::new(events).lines().map(Result::unwrap);
    served.push(lines.take_while(|line| !line.starts_with("id: 2")).collect());
    end(page, served);
    written.extend(finish(&mut hushflow(["tail", &state, "--format", "csv"])).succeeded().out.into_bytes());
    gather(&case.state(), &mut written);
    gather(&case.lab.path("tables"), &mut written);
    let key = std::fs::read_to_string(case.lab.path("server.key")).unwrap();
    let of_certificate = key.lines().nth(1).unwrap();
    for secret in [SEED, "hidden-password", of_certificate] {
        let found = written.windows(secret.len()).any(|part| part == secret.as_bytes());
        assert!(!found, "a secret of {} letters is written", secret.len());
    }
    let covered = [
        "hushflow_rows_closed",
        "redis://127.0.0.1:1",
        "--metrics",
        "--web",
        "<html",
        "\"horizon\":",
        "data: {",
    ];
    for public in covered.into_iter().chain(["PAR1", "epoch,start,key"]) {
        let found = written.windows(public.len()).any(|part| part == public.as_bytes());
        assert!(found, "the search covers {public}");
    }
}
