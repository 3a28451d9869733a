//! Decides when all rows up to a value of the ordering column are visible.
//!
//! A transaction may draw a value, and commit its row after rows with higher values are visible. If
//! a reader had then continued above that value, it would lose the row. So before rows up to U are
//! read:
//!
//! 1. U is the highest value that a first query sees.
//! 2. A second query lists the transactions that may hold a value without showing it: for numbers,
//!    those that hold a lock for writing rows (`RowExclusiveLock`); for times, all of the database.
//! 3. They must all end. Those that were prepared for a commit in two phases are listed and awaited
//!    after that.
//! 4. A later query reads the rows up to U.
//!
//! **Claim.** If values are drawn by the default of the column within the `INSERT`, in rising
//! order, then step 4 sees every row with a value of at most U that is ever committed.
//!
//! **Proof.** Let transaction T commit a row with the value v ≤ U, and let step 4 not see it.
//! Values rise, and U was drawn before step 1 saw it, so v was drawn before step 1. For numbers, T
//! then held the lock: `INSERT` and `COPY` lock the table before they evaluate a default, and keep
//! the lock until T ends. For times, v is not before the start of T, which holds its virtual
//! transaction from there. The server makes T visible before it releases the lock or the virtual
//! transaction. T was not visible in step 4, so T held it throughout steps 2 and 3, unless T was
//! prepared. Then T is among the prepared transactions until it is visible. In both cases step 3
//! has waited for T. A contradiction. ∎
//!
//! A session takes the time of its transaction a moment before it holds the virtual transaction. So
//! U is also at least [`CLOCK_MARGIN`] old for times. The claim needs: sequences without `CACHE`
//! (sessions would draw values in advance) and without `CYCLE`, times from `DEFAULT now()` or a
//! later clock, and a server's clock that is not set back by more than the margin.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::connection::DatabaseConnection;
use crate::connect::RequestError;

/// Minimum age of a time up to which rows are read, as SQL.
pub(super) const CLOCK_MARGIN: &str = "interval '5 seconds'";

/// Type of the ordering column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderKind {
    /// `smallint`, `integer` or `bigint`.
    Number,
    /// `timestamptz`, in microseconds since 1970.
    Time,
}

const THIS_DATABASE: &str = "(SELECT oid FROM pg_database WHERE datname = current_database())";

const PREPARED: &str = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()";

/// Transactions that must end before rows are read.
pub(super) struct OpenTransactions {
    kind: OrderKind,
    open: HashSet<String>,
    /// Whether these are the prepared transactions, which are awaited last.
    are_prepared: bool,
    since: Instant,
    is_reported: bool,
}

/// Length of a wait after which it is reported.
const LONG_WAIT: Duration = Duration::from_secs(10);

impl OpenTransactions {
    /// Lists the transactions (step 2).
    pub(super) fn list(connection: &mut DatabaseConnection, kind: OrderKind) -> Result<Self, RequestError> {
        let open = names(connection, &running(kind))?;
        Ok(OpenTransactions { kind, open, are_prepared: false, since: Instant::now(), is_reported: false })
    }

    /// Whether all of them have ended (step 3).
    pub(super) fn have_ended(&mut self, connection: &mut DatabaseConnection) -> Result<bool, RequestError> {
        if !self.are_prepared {
            if !self.open.is_empty() {
                let running = names(connection, &running(self.kind))?;
                self.open.retain(|transaction| running.contains(transaction));
            }
            if !self.open.is_empty() {
                return Ok(false);
            }
            self.open = names(connection, PREPARED)?;
            self.are_prepared = true;
        } else if !self.open.is_empty() {
            let prepared = names(connection, PREPARED)?;
            self.open.retain(|transaction| prepared.contains(transaction));
        }
        Ok(self.open.is_empty())
    }
}

impl OpenTransactions {
    /// Returns a message about a wait of more than [`LONG_WAIT`], once.
    pub(super) fn long_wait(&mut self) -> Option<String> {
        if self.since.elapsed() < LONG_WAIT || std::mem::replace(&mut self.is_reported, true) {
            return None;
        }
        Some(self.obstacle())
    }

    /// Returns a message about the transactions that hold rows back.
    pub(super) fn obstacle(&self) -> String {
        let (kind, view) = match self.are_prepared {
            true => ("prepared", "pg_prepared_xacts"),
            false => ("open", "pg_stat_activity"),
        };
        format!(
            "new rows are read once {kind} transactions have ended, which may hold earlier rows: {view} lists them"
        )
    }
}

/// The query that lists running transactions of other sessions, except for `VACUUM`, which may take
/// hours and inserts no rows.
fn running(kind: OrderKind) -> String {
    let (locks, other) = match kind {
        OrderKind::Number => ("locktype = 'relation' AND mode = 'RowExclusiveLock' AND database", ""),
        OrderKind::Time => ("locktype = 'virtualxid' AND datid", " JOIN pg_stat_activity USING (pid)"),
    };
    format!(
        "SELECT DISTINCT virtualtransaction FROM pg_locks{other} WHERE {locks} = {THIS_DATABASE} AND granted \
         AND pid <> pg_backend_pid() AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)"
    )
}

fn names(connection: &mut DatabaseConnection, query: &str) -> Result<HashSet<String>, RequestError> {
    let rows = connection.query(query)?;
    Ok(rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
}
