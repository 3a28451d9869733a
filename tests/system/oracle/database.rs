//! Rows in a table of PostgreSQL: the worlds of a case take turns with one table, because what is
//! public names it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::NEIGHBOURS;
use super::factors::{Case, Factor as F};
use crate::postgres::server::{PostgresServer, installed};

static DATABASE: Mutex<Option<PostgresServer>> = Mutex::new(None);
static TURN: Mutex<()> = Mutex::new(());

/// The server of a test, which ends with it.
struct TestDatabase;

impl Drop for TestDatabase {
    fn drop(&mut self) {
        server().take();
    }
}

fn server() -> MutexGuard<'static, Option<PostgresServer>> {
    DATABASE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no other world uses the table.
pub(super) fn turn(case: &Case) -> Option<MutexGuard<'static, ()>> {
    case.is(F::Source, &["postgres"]).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The fields of the source.
pub(super) fn source() -> String {
    let port = server().as_ref().map_or(0, |server| server.port);
    format!("path = 'postgres://127.0.0.1:{port}/test'\ntable = 'rows'\norder = 'number'\n")
}

/// Fills a new table with the rows of a CSV text, all of them as text.
pub(super) fn fill(csv: &str) {
    let (header, rows) = csv.split_once('\n').expect("a header");
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
    server().as_ref().expect("a server").sql(&text);
}

#[test]
fn neighbours_in_a_database_are_alike_too() {
    let Some(programs) = installed() else { return };
    *server() = Some(PostgresServer::new(programs));
    let _ends = TestDatabase;
    let usual = [(F::Source, "postgres"), (F::Keys, "three")];
    let case =
        |(seed, levels): (usize, [(F, &str); 4])| Case::of(&[&usual[..], &levels].concat(), seed as u64);
    let cases = [
        [(F::Clock, "records"), (F::Watch, "log debug"), (F::Neighbours, "zero-out"), (F::Values, "odd")],
        [(F::Clock, "arrival"), (F::Watch, "table"), (F::Restart, "grown"), (F::Values, "odd")],
        [(F::Clock, "late folded"), (F::Watch, "sink"), (F::Restart, "torn"), (F::Unit, "entity")],
        [(F::Clock, "end-of-input"), (F::Watch, "json"), (F::Copies, "by id"), (F::Values, "huge")],
    ];
    let cases: Vec<_> = cases.into_iter().enumerate().map(case).collect();
    NEIGHBOURS.tried(&cases).expect_no_leaks();
}
