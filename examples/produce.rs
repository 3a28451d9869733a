//! Sends the rows of a CSV file over a socket without loss or duplicates. It resumes after the last
//! acknowledged row, even if either process was killed.
//!
//! ```sh
//! cargo run --release -- run examples/socket.toml
//! # and in another terminal:
//! cargo run --release --example produce -- 127.0.0.1:7000 [FILE [ROWS A SECOND]]
//! ```

use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const FLIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/flights_jan2013.csv");

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:7000".into());
    let text = fs::read_to_string(arguments.next().unwrap_or_else(|| FLIGHTS.into()))?;
    let rate: f64 = arguments.next().map_or(Ok(2000.0), |rate| rate.parse())?;
    let (header, rows) = text.split_once('\n').ok_or("the file has no header")?;
    let rows: Vec<&str> = rows.lines().collect();
    let safe = AtomicUsize::new(0);
    while safe.load(Ordering::Relaxed) < rows.len() {
        if let Err(error) = send(&address, header, &rows, rate, &safe) {
            writeln!(io::stderr(), "{address}: {error}; trying again")?;
            thread::sleep(Duration::from_secs(1));
        }
    }
    writeln!(io::stderr(), "all {} rows are safe", rows.len())?;
    Ok(())
}

/// Sends the rows that are not acknowledged over one connection, and reads acknowledgements.
fn send(address: &str, header: &str, rows: &[&str], rate: f64, safe: &AtomicUsize) -> io::Result<()> {
    let mut connection = TcpStream::connect(address)?;
    let mut lines = BufReader::new(connection.try_clone()?).lines();
    let mut acknowledge = || -> io::Result<usize> {
        let line = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
        let number = line.parse().map_err(|_| io::Error::other(line))?;
        safe.store(number, Ordering::Relaxed);
        Ok(number)
    };
    let first = acknowledge()?.min(rows.len());
    writeln!(io::stderr(), "continuing after row {first}")?;
    thread::scope(|scope| {
        let reader = scope.spawn(move || while acknowledge().is_ok_and(|number| number < rows.len()) {});
        writeln!(connection, "{header}")?;
        for part in rows[first..].chunks((rate / 20.0).ceil() as usize) {
            connection.write_all((part.join("\n") + "\n").as_bytes())?;
            thread::sleep(Duration::from_secs_f64(part.len() as f64 / rate));
        }
        // Wait until the last row is acknowledged or the connection ends.
        while !reader.is_finished() {
            thread::sleep(Duration::from_millis(20));
        }
        connection.shutdown(std::net::Shutdown::Both)
    })
}
