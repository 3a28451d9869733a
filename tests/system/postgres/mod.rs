//! Tables of a real PostgreSQL server as sources and sinks. While a run reads or writes, the server
//! crashes, connections are cut, transactions commit late, and the run is killed. Tests without an
//! installed server are skipped with a message.

pub(crate) mod server;
mod sinks;

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use crate::harness::{
    Ended, Lab, Random, Stream, await_until, finish, hushflow, releases, run, stop, sums, tail, wait,
};
use crate::servers::Proxy;
use crate::tls::certificates;
use server::{PostgresServer, installed};

const STREAM: Stream = Stream { rows: 6000, epochs: 40 };

/// Types of the columns of the stream.
const TYPES: &str =
    "event timestamptz, arrival timestamptz, key text, a float8, b numeric, c text, d float8, e real";

struct TableStream {
    lab: Lab,
    rows: Vec<String>,
    expected: Vec<Vec<i128>>,
    server: PostgresServer,
}

impl TableStream {
    fn new(stream: &Stream, programs: PathBuf) -> Self {
        let (lab, _header, rows, expected) = stream.laid_out();
        let rows = rows.iter().map(|row| row.trim_end().to_owned()).collect();
        let server = PostgresServer::new(programs);
        server
            .sql(&format!("CREATE TABLE rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {TYPES})"));
        TableStream { lab, rows, expected, server }
    }

    fn pipeline(&self, port: u16, source: &str) -> PathBuf {
        let text = STREAM.pipeline(&format!("postgres://127.0.0.1:{port}/test"), "");
        self.lab.write("pipeline.toml", text.replace("format = 'csv'", source))
    }

    fn state(&self) -> PathBuf {
        self.lab.path("state")
    }

    fn start(&self, pipeline: &Path, arguments: &[&str]) -> Child {
        run(pipeline, &self.state(), 2).args(arguments).spawn().expect("the run starts")
    }

    /// The statement that inserts rows of the stream.
    fn insert(&self, first: usize, number: usize) -> String {
        let fields = |row: &String| {
            let fields: Vec<_> = row.split(',').map(|field| format!("nullif('{field}', '')")).collect();
            let types = TYPES.split(", ").map(|column| column.split(' ').next_back().expect("a type"));
            let fields = fields.iter().zip(types).map(|(field, kind)| format!("{field}::{kind}"));
            format!("({})", fields.collect::<Vec<_>>().join(","))
        };
        let rows: Vec<_> = self.rows.iter().skip(first).take(number).map(fields).collect();
        format!("INSERT INTO rows (event, arrival, key, a, b, c, d, e) VALUES {}", rows.join(","))
    }

    #[track_caller]
    fn until_idle(&self, pipeline: &Path) -> Ended {
        wait(self.start(pipeline, &["--until-idle", "1s"])).succeeded()
    }
}

/// The fields of a user and the password in the variable `PASSWORD`, for `user:password`.
fn logged_in(login: &str) -> String {
    match login.split_once(':') {
        Some((user, _)) => format!("user = '{user}'\npassword_env = 'PASSWORD'"),
        None if login.is_empty() => String::new(),
        None => format!("user = '{login}'"),
    }
}

/// The check of the first rows ends at the current end of the table.
#[test]
fn a_live_table_is_published_while_it_grows() {
    let Some(programs) = installed() else { return };
    let case = TableStream::new(&STREAM, programs);
    case.server.sql(&case.insert(0, 600));
    let live = case.start(&case.pipeline(case.server.port, "table = 'rows'\norder = 'id'"), &[]);
    await_until("closed epochs are published", || !releases(&case.state()).is_empty());
    stop(&live);
    wait(live).succeeded();
}

const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE mode = 'RowExclusiveLock' AND locktype = 'relation'";

/// A check does not wait for open transactions longer than a while.
#[test]
fn a_check_gives_up_on_open_transactions() {
    let Some(programs) = installed() else { return };
    let case = TableStream::new(&STREAM, programs);
    let pipeline = case.pipeline(case.server.port, "table = 'rows'\norder = 'id'");
    case.server.sql(&case.insert(0, 600));
    let mut open = case.server.session();
    open.run("BEGIN");
    open.run(&case.insert(600, 1));
    await_until("the transaction has its lock", || case.server.sql(LOCKS) != "0");
    finish(hushflow(["check"]).arg(&pipeline)).failed(5, &["pg_stat_activity", "nothing was read"]);
}

#[test]
fn every_row_of_a_table_counts_once_through_crashes_cuts_and_late_commits() {
    let Some(programs) = installed() else { return };
    let mut case = TableStream::new(&STREAM, programs);
    let proxy = Proxy::to(case.server.port);
    let pipeline = case.pipeline(proxy.port, "table = 'rows'\norder = 'id'");
    let mut random = Random(11);
    let mut live = case.start(&pipeline, &[]);
    for (round, first) in (0..case.rows.len()).step_by(600).enumerate() {
        // The first rows commit after the later ones.
        let drawn = |case: &TableStream| -> u64 {
            let drawn =
                case.server.sql("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM rows_id_seq");
            drawn.parse().expect("a number")
        };
        let before = drawn(&case);
        let mut late = case.server.session();
        late.run("BEGIN");
        late.run(&case.insert(first, 100));
        await_until("rows have numbers", || drawn(&case) >= before + 100);
        case.server.sql(&case.insert(first + 100, 300));
        std::thread::sleep(Duration::from_millis(random.below(300)));
        if round % 3 == 1 {
            late.run("PREPARE TRANSACTION 'late'");
            late.end();
            std::thread::sleep(Duration::from_millis(random.below(300)));
            case.server.sql("COMMIT PREPARED 'late'");
        } else {
            late.run("COMMIT");
            late.end();
        }
        case.server.sql(&case.insert(first + 400, 200));
        match round % 5 {
            0 => proxy.cut(),
            1 => {
                case.server.kill();
                std::thread::sleep(Duration::from_millis(random.below(200)));
                case.server.start();
            }
            2 => {
                live.kill().expect("a child can be killed");
                wait(live);
                live = case.start(&pipeline, &[]);
            }
            3 => {
                stop(&live);
                wait(live).stopped();
                live = case.start(&pipeline, &[]);
            }
            _ => std::thread::sleep(Duration::from_millis(300)),
        }
    }
    await_until("all epochs but the last are published", || releases(&case.state()).len() >= 38);
    stop(&live);
    wait(live).succeeded();
    case.until_idle(&pipeline);
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
}

#[test]
fn a_run_resumes_among_rows_with_the_same_time() {
    let Some(programs) = installed() else { return };
    let case = TableStream::new(&STREAM, programs);
    case.server.sql("ALTER TABLE rows ADD COLUMN added timestamptz NOT NULL DEFAULT now()");
    // Rows of a minute have the same time, and some are the same but for their number.
    let timed = "UPDATE rows SET added = date_trunc('minute', arrival) WHERE added > '2021-01-01'; \
                 INSERT INTO rows (event, arrival, key, a, b, c, d, e, added) \
                 SELECT event, arrival, key, a, b, c, d, e, added FROM rows WHERE id % 5 = 0";
    let mut late = case.server.session();
    late.run("BEGIN; SELECT 1");
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    await_until("a transaction is open", || case.server.sql(open) == "1");
    for first in (1000..case.rows.len()).step_by(1000) {
        case.server.sql(&case.insert(first, 1000));
    }
    case.server.sql(timed);
    let pipeline =
        case.pipeline(case.server.port, "query = 'SELECT * FROM rows -- all of them'\norder = 'added'");
    // With more epochs than rows, a run always asks for more.
    let text =
        std::fs::read_to_string(&pipeline).expect("the pipeline").replace("horizon = 40", "horizon = 50");
    std::fs::write(&pipeline, text).expect("the pipeline");
    // A transaction that has written nothing yet may still commit the first rows.
    let live = case.start(&pipeline, &["--until-idle", "1s"]);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(releases(&case.state()).is_empty());
    late.run(&case.insert(0, 1000));
    late.run(&format!("{timed} AND arrival < '2020-01-01 00:16:40+00'"));
    late.run("COMMIT");
    late.end();
    wait(live).succeeded();
    let expected = sums(&case.state());
    assert_eq!(expected.len(), 40);
    let (state, mut random) = (case.lab.path("killed"), Random(7));
    let mut kills = 0;
    loop {
        let before = releases(&state).len();
        if before >= 38 {
            break;
        }
        let mut live = run(&pipeline, &state, 1).spawn().expect("the run starts");
        await_until("the run goes on", || releases(&state).len() > before);
        std::thread::sleep(Duration::from_millis(random.below(20)));
        live.kill().expect("a child can be killed");
        wait(live);
        kills += 1;
    }
    finish(run(&pipeline, &state, 1).args(["--until-idle", "1s"])).succeeded();
    assert!(sums(&state) == expected, "{kills} kills changed the sums");
    // Rows that were read may be removed, but not some of those with the last value.
    case.server.sql("DELETE FROM rows WHERE added = (SELECT max(added) FROM rows) AND id % 2 = 0");
    let refused = ["postgres://127.0.0.1", "fewer rows with the last value"];
    finish(run(&pipeline, &state, 1).args(["--until-idle", "1s"])).failed(1, &refused);
    case.server.sql("DELETE FROM rows WHERE added = (SELECT max(added) FROM rows)");
    finish(&mut run(&pipeline, &state, 1)).failed(1, &["ends before the value up to which it was read"]);
    case.server.sql("DELETE FROM rows");
    finish(run(&pipeline, &state, 1).args(["--until-idle", "1s"])).succeeded();
}

/// Types of columns: the same rows as in a file, with the same noise.
#[test]
fn columns_of_all_types_are_read_as_those_of_a_file() {
    let Some(programs) = installed() else { return };
    let (lab, server) = (Lab::new(), PostgresServer::new(programs));
    server.sql(
        "CREATE TYPE colour AS ENUM ('red', 'green'); \
         CREATE TABLE \"Mixed rows\" (n integer PRIMARY KEY, seen timestamptz, at timestamptz, \"a \"\"b\"\"\" boolean, x numeric, y real, \
         k colour); \
         INSERT INTO \"Mixed rows\" VALUES (-3, '2020-01-01', '2020-01-01 00:00:00+00', true, 1.25, -2.5, 'red'), \
         (-2, '2020-01-01', '2020-01-01 10:00:00.5+02', false, 'NaN', 1, 'green'), \
         (0, '2020-01-01', 'infinity', false, 1, 1, 'red'), \
         (1, '2020-01-02', '2020-01-02 00:00:00+00', NULL, -7.125, 'Infinity', 'green'), \
         (2, '2020-01-02', '2020-01-02 01:00:00+00', true, 1e-3, 3e0, 'green'), \
         (3, '2020-01-02', NULL, true, 1, 1, 'red'), \
         (4, '2020-01-03', '2020-01-03 01:00:00+00', true, 4, 5, 'red')",
    );
    let rows = "seen,at,\"a \"\"b\"\"\",x,y,k\n2020-01-01,2020-01-01T00:00:00Z,1,1.25,-2.5,red\n\
                2020-01-01,2020-01-01T10:00:00.5+02:00,0,NaN,1,green\n2020-01-01,infinity,0,1,1,red\n\
                2020-01-02,2020-01-02T00:00:00Z,,-7.125,Infinity,green\n\
                2020-01-02,2020-01-02T01:00:00Z,1,0.001,3,green\n2020-01-02,,1,1,1,red\n\
                2020-01-03,2020-01-03T01:00:00Z,1,4,5,red\n";
    lab.write("rows.csv", rows);
    let pipeline = |name: &str, source: &str| {
        let columns = ["a \"b\"", "x", "y"]
            .map(|name| format!("[[columns]]\nname = '{name}'\nlower = -8\nupper = 8\n"));
        let text = format!(
            "name = 'mixed'\n[source]\nmissing = 'by-column'\n{source}\n{}[key]\ncolumn = 'k'\nvalues = ['red', 'green']\n\
             [epochs]\ntime = 'at'\narrival = 'seen'\nstart = '2020-01-01'\nlength = '1d'\nhorizon = 3\n\
             [privacy]\nepsilon = 1\ndelta = 1e-6\nclip_norm = 2\n[simulation]\nseed = 5\n",
            columns.concat()
        );
        lab.write(name, text)
    };
    let table =
        format!("path = 'postgres://127.0.0.1:{}/test'\ntable = 'Mixed rows'\norder = 'n'", server.port);
    let run_of = |name: &str, source: &str, arguments: &[&str]| {
        let (pipeline, state) = (pipeline(&format!("{name}.toml"), source), lab.path(name));
        finish(run(&pipeline, &state, 1).args(arguments)).succeeded();
        finish(&mut tail(&state, &["--view", "moments"])).succeeded().out
    };
    let [file, table] =
        [run_of("file", "path = 'rows.csv'", &[]), run_of("table", &table, &["--until-idle", "500ms"])];
    let numbers = |out: &str| -> Vec<String> {
        let lines = out.lines().map(|line| line.split("\"chain\"").nth(1).expect("a chain")[20..].to_owned());
        lines.collect()
    };
    assert_eq!(numbers(&file).len(), 6);
    assert_eq!(numbers(&file), numbers(&table));
}

#[test]
fn mistakes_are_refused_and_spend_nothing() {
    let Some(programs) = installed() else { return };
    let case = TableStream::new(&STREAM, programs);
    case.server.sql(
        "CREATE USER reader PASSWORD 'correct'; CREATE USER guest PASSWORD 'guest'; GRANT SELECT ON rows TO reader; \
         CREATE TABLE cached (LIKE rows); ALTER TABLE cached ALTER id SET NOT NULL; \
         CREATE SEQUENCE s CACHE 5 OWNED BY cached.id; CREATE TABLE empty (LIKE rows); \
         ALTER TABLE empty ALTER id DROP NOT NULL; CREATE VIEW bad AS SELECT id, event, arrival, key, a, b, c, d FROM rows; \
         CREATE VIEW words AS SELECT id::text AS id FROM rows",
    );
    case.server.sql(&case.insert(0, 300));
    let port = case.server.port;
    let check = |login: &str, database: &str, source: &str, parts: &[&str]| {
        let path = format!("postgres://127.0.0.1:{port}/{database}");
        let text =
            STREAM.pipeline(&path, "").replace("format = 'csv'", &format!("{source}\n{}", logged_in(login)));
        let pipeline = case.lab.write("pipeline.toml", text);
        let mut run = run(&pipeline, &case.state(), 1);
        let ended =
            finish(run.args(["--until-idle", "5s"]).env("PASSWORD", login.split(':').nth(1).unwrap_or("")));
        for secret in ["mistaken", "correct", "'2020", "k3"] {
            assert!(!ended.err.contains(secret), "{secret}: {}", ended.err);
        }
        ended.failed(1, parts);
        assert!(releases(&case.state()).is_empty());
    };
    let rows = "table = 'rows'\norder = 'id'";
    check(
        "reader:mistaken@",
        "test",
        rows,
        &["postgres://127.0.0.1", "password authentication failed", "(28P01): see user and password_env"],
    );
    check("guest:guest", "test", rows, &["permission denied for table rows (42501)"]);
    check("reader:correct", "elsewhere", rows, &["database \"elsewhere\" does not exist (3D000)"]);
    check("", "test", "table = 'rooms'\norder = 'id'", &["relation \"rooms\" does not exist (42P01)"]);
    check("", "test", "table = 'rows'\norder = 'number'", &["column r.number does not exist (42703)"]);
    check("", "test", "table = 'bad'\norder = 'id'", &["column r.e does not exist (42703)"]);
    check("", "test", "table = 'words'\norder = 'id'", &["column \"id\" has another type", "bigint"]);
    check("", "test", "table = 'empty'\norder = 'id'", &["may be null", "SET NOT NULL"]);
    check("", "test", "table = 'cached'\norder = 'id'", &["CACHE 1"]);
    check("", "test", "query = 'SELECT FROM'\norder = 'id'", &["(42"]);
    check("", "test", "query = \"SELECT *, nextval('s') FROM rows\"\norder = 'id'", &["(25006)"]);
    // The text of this error holds a value of a row.
    check("", "test", "query = 'SELECT id, key::int AS event, * FROM rows'\norder = 'id'", &["(42702)"]);
    let cast = "query = 'SELECT id, event, arrival, key::int AS key, a, b, c, d, e FROM rows'\norder = 'id'";
    check("", "test", cast, &["error 22P02, whose text may hold values"]);
}

#[test]
fn connections_are_encrypted_to_the_right_server_only() {
    let Some(programs) = installed() else { return };
    let mut case = TableStream::new(&STREAM, programs);
    case.server.sql("CREATE USER reader PASSWORD 'correct'; GRANT SELECT ON rows TO reader");
    case.server.sql(&case.insert(0, case.rows.len()));
    let pipeline = |case: &TableStream, more: &str| {
        let source = format!("table = 'rows'\norder = 'id'\n{more}\n{}", logged_in("reader:correct"));
        case.pipeline(case.server.port, &source)
    };
    let end = |case: &TableStream, more: &str| {
        let mut run = run(&pipeline(case, more), &case.state(), 1);
        finish(run.args(["--until-idle", "2s"]).env("PASSWORD", "correct"))
    };
    end(&case, "tls = true").failed(1, &["the server has no TLS"]);
    let Some(folder) = case.server.offer_tls() else { return };
    let roots = |name: &str| format!("tls = true\ntls_roots = '{}'", folder.join(name).display());
    end(&case, &roots("other.pem")).failed(1, &["postgres://127.0.0.1", "certificate"]);
    let named = format!("{}\ntls_server_name = 'elsewhere'", roots("ca.pem"));
    end(&case, &named).failed(1, &["postgres://127.0.0.1", "its certificate is for"]);
    assert!(releases(&case.state()).is_empty());
    // The server accepts encrypted connections only.
    let access = case.server.data().join("pg_hba.conf");
    std::fs::write(
        &access,
        "hostssl all reader 127.0.0.1/32 password\nhost all postgres 127.0.0.1/32 trust\n",
    )
    .expect("rules of access");
    case.server.sql("SELECT pg_reload_conf()");
    let hint = "no encryption (28000): if it admits encrypted connections alone, add tls = true";
    await_until("the rules hold", || end(&case, "").err.contains(hint));
    end(&case, &roots("ca.pem")).succeeded();
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    // It also requires certificates of its clients. A log that has its last epoch would not be
    // continued.
    std::fs::remove_dir_all(case.state()).expect("a state directory");
    certificates(&case.lab);
    let rule = "hostssl all reader 127.0.0.1/32 scram-sha-256 clientcert=verify-ca";
    case.server.require_certificates(&case.lab.path("ca.pem"), rule);
    let certified = |name: &str| {
        let file = |end: &str| case.lab.path(&format!("{name}.{end}")).display().to_string();
        let files = format!("tls_certificate = '{}'\ntls_key = '{}'", file("pem"), file("key"));
        format!("{}\n{files}", roots("ca.pem"))
    };
    let hint = "(28000): if it requires a client certificate, set tls_certificate and tls_key";
    end(&case, &roots("ca.pem")).failed(1, &[hint]);
    end(&case, &certified("strange")).failed(1, &["it refuses our certificate: it does not trust the root"]);
    end(&case, &certified("outdated")).failed(1, &["it refuses our certificate: it has expired"]);
    end(&case, &certified("client")).succeeded();
}
