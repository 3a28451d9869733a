//! Publishes the rows of a CSV file to a Redis or NATS JetStream stream, one line per entry. The
//! server recognises rows by their numbers, so publishing them again changes nothing; with NATS,
//! within two minutes.
//!
//! ```sh
//! cargo run --release --example publish -- redis://127.0.0.1:6379 [FILE]
//! cargo run --release --example publish -- nats://127.0.0.1:4222 [FILE]
//! # then: run examples/redis.toml or examples/nats.toml
//! ```

use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;

const FLIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/flights_jan2013.csv");

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let server = arguments.next().ok_or("name a server: redis://127.0.0.1:6379 or nats://127.0.0.1:4222")?;
    let text = fs::read_to_string(arguments.next().unwrap_or_else(|| FLIGHTS.into()))?;
    let rows: Vec<&str> = text.lines().skip(1).collect();
    let published = match server.split_once("://") {
        Some(("redis", address)) => to_redis(TcpStream::connect(address)?, &rows)?,
        Some(("nats", address)) => to_nats(TcpStream::connect(address)?, &rows)?,
        _ => return Err("expected redis://host:port or nats://host:port".into()),
    };
    writeln!(io::stderr(), "{} rows are in the stream, {published} of them new", rows.len())?;
    Ok(())
}

/// Sends `XADD flights NUMBER-0 line ROW`: Redis refuses a number that is already in the stream.
/// Returns the number of new rows.
fn to_redis(mut connection: TcpStream, rows: &[&str]) -> io::Result<usize> {
    let mut answers = BufReader::new(connection.try_clone()?).lines();
    let mut new = 0;
    for (batch, first) in rows.chunks(500).zip((1..).step_by(500)) {
        let command = |(row, number): (&&str, usize)| {
            let id = format!("{number}-0");
            let parts =
                ["XADD", "flights", &id, "line", row].map(|part| format!("${}\r\n{part}\r\n", part.len()));
            format!("*5\r\n{}", parts.concat())
        };
        let commands: String = batch.iter().zip(first..).map(command).collect();
        connection.write_all(commands.as_bytes())?;
        for _ in batch {
            let answer = answers.next().ok_or(io::ErrorKind::UnexpectedEof)??;
            if answer.starts_with('$') {
                answers.next().ok_or(io::ErrorKind::UnexpectedEof)??;
                new += 1;
            } else if !answer.contains("equal or smaller") {
                return Err(io::Error::other(answer));
            }
        }
    }
    Ok(new)
}

/// Creates the stream `flights` if it is missing, and publishes a message for each row with its
/// number as `Nats-Msg-Id`. JetStream drops an id that it received in the last two minutes. Returns
/// the number of new rows.
fn to_nats(mut connection: TcpStream, rows: &[&str]) -> io::Result<usize> {
    let mut answers = BufReader::new(connection.try_clone()?).lines();
    // Returns the body of the next message on the subject `answer`, to which the server replies.
    let mut answer = move || -> io::Result<String> {
        loop {
            let line = answers.next().ok_or(io::ErrorKind::UnexpectedEof)??;
            match line.split(' ').next() {
                Some("MSG") => return answers.next().ok_or(io::ErrorKind::UnexpectedEof)?,
                Some("HMSG") => {
                    return Err(io::Error::other("JetStream is not enabled: start nats-server -js"));
                }
                Some("-ERR") => return Err(io::Error::other(line)),
                _ => {}
            }
        }
    };
    let config = r#"{"name":"flights","subjects":["flights"],"storage":"file"}"#;
    let create = format!("PUB $JS.API.STREAM.CREATE.flights answer {}\r\n{config}\r\n", config.len());
    let hello = "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB answer 1\r\n";
    connection.write_all(format!("{hello}{create}").as_bytes())?;
    let created = answer()?;
    if created.contains("\"error\"") {
        return Err(io::Error::other(created));
    }
    let mut new = 0;
    for (batch, first) in rows.chunks(500).zip((1..).step_by(500)) {
        let message = |(row, number): (&&str, usize)| {
            let head = format!("NATS/1.0\r\nNats-Msg-Id: {number}\r\n\r\n");
            format!("HPUB flights answer {} {}\r\n{head}{row}\r\n", head.len(), head.len() + row.len())
        };
        let messages: String = batch.iter().zip(first..).map(message).collect();
        connection.write_all(messages.as_bytes())?;
        for _ in batch {
            new += usize::from(!answer()?.contains("\"duplicate\""));
        }
    }
    Ok(new)
}
