//! Rows at a server: a table of PostgreSQL, a topic of Kafka, objects of S3. The worlds of a case
//! take turns with one server.

#[cfg(feature = "kafka")]
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::NEIGHBOURS;
use super::factors::{Case, Factor as F};
#[cfg(feature = "kafka")]
use crate::kafka::cluster::KafkaCluster;
use crate::postgres::server::{PostgresServer, installed};
#[cfg(feature = "s3")]
use crate::s3::{ObjectServer, SECRET, access};

/// Levels of the factor `Source` that name a server.
pub(super) const STORES: [&str; 3] = ["postgres", "kafka", "s3"];

static SERVERS: [Mutex<Option<Store>>; 3] = [const { Mutex::new(None) }; 3];
static SERVER_LOCKS: [Mutex<()>; 3] = [const { Mutex::new(()) }; 3];

/// A server, with the number of rows that it has.
enum Store {
    Table(PostgresServer),
    #[cfg(feature = "kafka")]
    Topic(Topic, usize),
    #[cfg(feature = "s3")]
    Objects(ObjectServer, usize),
}

/// A topic of a cluster, which stays in a thread of its own.
#[cfg(feature = "kafka")]
struct Topic {
    /// Rows to publish, or nothing for a new cluster.
    orders: Sender<Option<Vec<String>>>,
    /// The address of the cluster after each order.
    addresses: Receiver<String>,
    address: String,
}

#[cfg(feature = "kafka")]
impl Topic {
    fn new() -> Self {
        let (orders, wanted) = channel::<Option<Vec<String>>>();
        let (sender, addresses) = channel();
        std::thread::spawn(move || {
            let mut cluster = KafkaCluster::new(&[]);
            for order in wanted {
                match order {
                    None => cluster = KafkaCluster::new(&[("rows", 1)]),
                    Some(rows) => {
                        cluster.publish(("rows", 0), rows.iter().map(|row| Some(row.as_bytes())));
                    }
                }
                let _ = sender.send(cluster.address());
            }
        });
        Topic { orders, addresses, address: String::new() }
    }

    fn order(&mut self, order: Option<Vec<String>>) {
        self.orders.send(order).expect("the thread of the cluster");
        self.address = self.addresses.recv().expect("the thread of the cluster");
    }
}

/// The server of a test, which ends with it.
struct TestStore(&'static str);

impl TestStore {
    fn new(name: &'static str, store: Store) -> Self {
        *server(index(name)) = Some(store);
        TestStore(name)
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        server(index(self.0)).take();
    }
}

fn index(name: &str) -> usize {
    STORES.iter().position(|store| *store == name).expect("a server")
}

fn server(index: usize) -> MutexGuard<'static, Option<Store>> {
    SERVERS[index].lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of a case's server.
fn index_of(case: &Case) -> Option<usize> {
    STORES.iter().position(|store| case.is(F::Source, &[store]))
}

/// Waits until no other world uses the server, and empties it.
pub(super) fn lock_server(case: &Case) -> Option<MutexGuard<'static, ()>> {
    let index = index_of(case)?;
    let turn = SERVER_LOCKS[index].lock().unwrap_or_else(PoisonError::into_inner);
    match server(index).as_mut().expect("a server") {
        Store::Table(_) => {}
        #[cfg(feature = "kafka")]
        Store::Topic(topic, rows) => {
            topic.order(None);
            *rows = 0;
        }
        #[cfg(feature = "s3")]
        Store::Objects(server, rows) => {
            server.empty();
            *rows = 0;
        }
    }
    Some(turn)
}

/// The fields of the source, whose rows have these columns. `None` if the case has no server.
#[cfg_attr(not(feature = "kafka"), expect(unused_variables, reason = "messages alone have no header"))]
pub(super) fn source(case: &Case, header: &str) -> Option<String> {
    let fields = match server(index_of(case)?).as_ref()? {
        Store::Table(server) => {
            format!("path = 'postgres://127.0.0.1:{}/test'\ntable = 'rows'\norder = 'number'\n", server.port)
        }
        #[cfg(feature = "kafka")]
        Store::Topic(topic, _) => {
            let names: Vec<_> = header.trim_end().split(',').collect();
            format!(
                "path = 'kafka://{}'\nstream = 'rows'\nformat = 'csv'\nheader = {names:?}\n",
                topic.address
            )
        }
        #[cfg(feature = "s3")]
        Store::Objects(server, _) => {
            format!("path = 's3://logs/in/*.csv'\n{}", access(&format!("http://127.0.0.1:{}", server.port)))
        }
    };
    Some(fields)
}

/// Arguments with which a run ends once it has read everything. `None` if the case has no server.
pub(super) fn arguments(case: &Case) -> Option<&'static [&'static str]> {
    Some(match STORES[index_of(case)?] {
        "postgres" => &["--until-idle", "700ms"],
        "kafka" => &["--until-idle", "1500ms"],
        _ => &[],
    })
}

/// Gives the rows of a CSV text to the server: to a table all of them, as text; to the others those
/// that they don't have yet.
pub(super) fn fill(case: &Case, csv: &str) {
    let (header, rows) = csv.split_once('\n').expect("a header");
    let index = index_of(case).expect("a case with a server");
    match server(index).as_mut().expect("a server") {
        Store::Table(server) => {
            server.sql(&statements(header, rows));
        }
        #[cfg(feature = "kafka")]
        Store::Topic(topic, known) => {
            let all: Vec<_> = rows.lines().map(String::from).collect();
            topic.order(Some(all[*known..].to_vec()));
            *known = all.len();
        }
        #[cfg(feature = "s3")]
        Store::Objects(server, known) => {
            let all: Vec<_> = rows.lines().collect();
            let object = format!("{header}\n{}\n", all[*known..].join("\n"));
            server.put(&format!("in/{known:09}.csv"), object.as_bytes());
            *known = all.len();
        }
    }
}

/// The password that a source may ask for.
pub(super) fn secret() -> &'static str {
    #[cfg(feature = "s3")]
    return SECRET;
    #[cfg(not(feature = "s3"))]
    "none"
}

/// Statements that make a new table with these rows.
fn statements(header: &str, rows: &str) -> String {
    let columns: Vec<_> = header.split(',').map(|name| format!("\"{name}\" text")).collect();
    let mut text = format!(
        "DROP TABLE IF EXISTS rows; CREATE TABLE rows (number bigserial PRIMARY KEY, {})",
        columns.join(", ")
    );
    let names = header.split(',').map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let row = |row: &str| {
        let fields: Vec<_> = row.split(',').map(|field| format!("'{}'", field.replace('\'', "''"))).collect();
        format!("({})", fields.join(", "))
    };
    let rows: Vec<_> = rows.lines().map(row).collect();
    if !rows.is_empty() {
        text += &format!("; INSERT INTO rows ({names}) VALUES {}", rows.join(",\n"));
    }
    text
}

/// Cases whose rows are at a server.
fn cases(name: &'static str) -> Vec<Case> {
    let common = [(F::Source, name), (F::Keys, "three")];
    let levels = [
        [(F::Clock, "records"), (F::Watch, "log debug"), (F::Neighbours, "zero-out"), (F::Values, "odd")],
        [(F::Clock, "arrival"), (F::Watch, "table"), (F::Restart, "grown"), (F::Values, "odd")],
        [(F::Clock, "late folded"), (F::Watch, "sink"), (F::Restart, "torn"), (F::Unit, "entity")],
        [(F::Clock, "end-of-input"), (F::Watch, "json"), (F::Copies, "by id"), (F::Values, "huge")],
    ];
    let case =
        |(seed, levels): (usize, &[(F, &str); 4])| Case::of(&[&common[..], levels].concat(), seed as u64);
    levels.iter().enumerate().map(case).collect()
}

#[test]
fn neighbours_in_a_table_are_alike_too() {
    let Some(programs) = installed() else { return };
    let _ends = TestStore::new("postgres", Store::Table(PostgresServer::new(programs)));
    NEIGHBOURS.tried(&cases("postgres")).expect_no_leaks();
}

#[test]
#[cfg(feature = "kafka")]
fn neighbours_in_a_topic_are_alike_too() {
    let _ends = TestStore::new("kafka", Store::Topic(Topic::new(), 0));
    NEIGHBOURS.tried(&cases("kafka")).expect_no_leaks();
}

#[test]
#[cfg(feature = "s3")]
fn neighbours_in_objects_are_alike_too() {
    let Some(server) = ObjectServer::start() else { return };
    let _ends = TestStore::new("s3", Store::Objects(server, 0));
    NEIGHBOURS.tried(&cases("s3")).expect_no_leaks();
}
