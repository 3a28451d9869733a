//! A table as a sink: every statistic of every key and epoch once.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use super::server::{PostgresServer, installed};
use crate::harness::{self, Random, finish, number, stop, wait};
use crate::servers::Proxy;
use crate::stream_sinks::SinkStream;

/// Numbers of a row: value, noise, and ends of the interval.
type Numbers = [Option<f64>; 4];

/// The rows of the table, by epoch, key, statistic and columns.
fn in_table(server: &PostgresServer) -> HashMap<(u64, String, String, String), Numbers> {
    let rows = server.sql(
        "SELECT epoch, key, statistic, array_to_string(of, '~'), value, noise, lower, upper FROM releases \
         WHERE view = 'so far' AND start IS NOT NULL AND private AND dataset = 'releases'",
    );
    let row = |line: &str| {
        let fields: Vec<_> = line.split('|').collect();
        let number = |index: usize| fields[index].parse().ok();
        let key = (number_of(fields[0]), fields[1].into(), fields[2].into(), fields[3].into());
        (key, [number(4), number(5), number(6), number(7)])
    };
    let found: HashMap<_, _> = rows.lines().map(row).collect();
    assert_eq!(found.len(), rows.lines().count(), "the key identifies a row");
    found
}

fn number_of(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// Checks that the table has just what `tail` shows.
fn check(server: &PostgresServer, shown: &[Value]) {
    let found = in_table(server);
    // The count, five means and fifteen covariances.
    assert_eq!(found.len(), shown.len() * 21);
    for line in shown {
        let of = |statistic: &str, of: &str| {
            let key = line["key"].as_str().expect("a key").to_owned();
            found[&(line["epoch"].as_u64().expect("an epoch"), key, statistic.into(), of.into())]
        };
        assert_eq!(of("count", "")[..2], [Some(number(&line["count"])), Some(number(&line["count_noise"]))]);
        for column in ["a", "b", "c", "d", "e"] {
            let ends = &line["mean_interval"][column];
            let expected = [&line["mean"][column], &line["mean_noise"][column], &ends[0], &ends[1]];
            assert_eq!(of("mean", column), expected.map(Value::as_f64), "{line}");
        }
        assert_eq!(of("covariance", "a~c")[0], line["covariance"][0][2].as_f64());
    }
}

#[test]
fn a_table_has_every_statistic_once_through_crashes_cuts_and_kills() {
    let Some(programs) = installed() else { return };
    let mut server = PostgresServer::new(programs);
    let mut case = SinkStream::new();
    let proxy = Proxy::to(server.port);
    let pipeline =
        case.pipeline(&format!("path = 'postgres://127.0.0.1:{}/test'\ntable = 'releases'", proxy.port));
    let mut random = Random(5);
    let mut live = case.start(&pipeline);
    case.grow(200);
    for round in 0..15 {
        case.progress(200);
        std::thread::sleep(Duration::from_millis(random.below(150)));
        match round % 5 {
            0 => proxy.cut(),
            1 => {
                server.kill();
                // A missing server does not delay a run.
                case.progress(200);
                server.start();
            }
            2 => {
                live.kill().expect("a child can be killed");
                wait(live);
                live = case.start(&pipeline);
            }
            3 => {
                let mut session = server.session();
                session.run("BEGIN; LOCK TABLE releases");
                std::thread::sleep(Duration::from_millis(random.below(150)));
                live.kill().expect("a child can be killed");
                wait(live);
                session.run("COMMIT");
                session.end();
                live = case.start(&pipeline);
            }
            _ => {
                stop(&live);
                wait(live).succeeded();
                live = case.start(&pipeline);
            }
        }
    }
    live.kill().expect("a child can be killed");
    wait(live);
    case.complete(&pipeline);
    let shown = case.shown();
    check(&server, &shown);
    // Rows that were removed from the end are written again.
    server.sql("DELETE FROM releases WHERE epoch > 30");
    case.complete(&pipeline);
    check(&server, &shown);
    // Another history must not continue in the same table, unless it has its own data set.
    let other = || case.lab.path("other state");
    finish(harness::run(&pipeline, &other(), 1).args(["--until-idle", "1s"]))
        .failed(1, &["postgres://127.0.0.1", "is not of the history"]);
    check(&server, &shown);
    let own = case.pipeline(&format!(
        "path = 'postgres://127.0.0.1:{}/test'\ntable = 'releases'\ndataset = \"the \\\"other's\\\"\"",
        server.port
    ));
    finish(harness::run(&own, &other(), 1).args(["--until-idle", "1s"])).succeeded();
    check(&server, &shown);
    assert_eq!(server.sql("SELECT count(DISTINCT dataset), max(epoch), min(epoch) FROM releases"), "2|40|1");
}

#[test]
fn names_of_all_kinds_are_stored_and_other_tables_are_left_alone() {
    let Some(programs) = installed() else { return };
    let server = PostgresServer::new(programs);
    let mut case = SinkStream::new();
    let path = format!("path = 'postgres://127.0.0.1:{}/test'", server.port);
    let end = |case: &mut SinkStream, sink: &str, key: &str, parts: &[&str]| {
        let pipeline = case.pipeline(&format!("{path}\n{sink}"));
        let text = std::fs::read_to_string(&pipeline).expect("the pipeline").replace("'k6'", key);
        let pipeline = case.lab.write("pipeline.toml", text);
        case.grow(6000);
        let state = case.lab.path(&format!("state {}", sink.len() + key.len()));
        let ended = finish(harness::run(&pipeline, &state, 1).args(["--until-idle", "1s"]));
        if parts.is_empty() { drop(ended.succeeded()) } else { ended.failed(1, parts) }
    };
    server.sql(
        "CREATE TABLE numbers (epoch bigint); CREATE SCHEMA \"My schema\"; \
         CREATE USER guest PASSWORD 'guest'; CREATE TABLE early (LIKE numbers)",
    );
    end(&mut case, "table = 'numbers'", "'k6'", &["the table has no column \"dataset\" of type text"]);
    end(&mut case, "table = 'nowhere.releases'", "'k6'", &["schema \"nowhere\" does not exist (3F000)"]);
    assert_eq!(server.sql("SELECT count(*) FROM numbers"), "0");
    let key = "\"a\\\\N'\\t\\n\\r\\\"{},\\\\.\"";
    end(&mut case, "table = 'My schema.Releases \"x\"'", key, &[]);
    let table = "\"My schema\".\"Releases \"\"x\"\"\"";
    let found = server.sql(&format!(
        "SELECT DISTINCT key = E'a\\\\N''\\t\\n\\r\"{{}},\\\\.' FROM {table} WHERE key !~ '^k'"
    ));
    assert_eq!(found, "t");
    end(&mut case, "table = 'with_nul'", "\"a\\u0000\"", &["can't store the character NUL"]);
    server.sql(&format!("CREATE TABLE keyless AS SELECT * FROM {table} LIMIT 0"));
    end(&mut case, "table = 'keyless'", "'k6'", &["no PRIMARY KEY"]);
    server.sql("ALTER DATABASE test SET default_transaction_read_only = on");
    end(&mut case, "table = 'unwritten'", "'k6'", &["read-only transaction (25006)"]);
    server.sql(
        "SET default_transaction_read_only = off; ALTER DATABASE test RESET default_transaction_read_only",
    );
    let denied = case.pipeline(&format!("{path}\ntable = 'denied'\n{}", super::logged_in("guest:guest")));
    let mut denied = harness::run(&denied, &case.lab.path("denied"), 1);
    finish(denied.args(["--until-idle", "1s"]).env("PASSWORD", "guest")).failed(1, &["permission denied"]);
}
