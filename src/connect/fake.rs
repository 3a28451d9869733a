//! Shared test helpers: servers with scripted answers, and pipelines with one source or sink.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread::{JoinHandle, spawn};

use super::Sink;
use crate::format::Format;
use crate::format::form::{EntryParser, RowLayout};
use crate::pipeline::{Pipeline, Source};

/// Starts a server for one client and returns its address. Each answer with a word waits for a line
/// that contains the word. If it `goes_on`, endless bytes follow the last answer.
pub(super) fn serve(script: Vec<(Option<&'static str>, String)>, goes_on: bool) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = BufReader::new(stream.try_clone().unwrap());
        for (word, answer) in script {
            let mut line = String::new();
            while word.is_some_and(|word| !line.contains(word)) {
                line.clear();
                assert!(asked.read_line(&mut line).unwrap() > 0, "the client is gone before {word:?}");
            }
            stream.write_all(answer.as_bytes()).unwrap();
        }
        let more = vec![b'7'; if goes_on { 1 << 20 } else { 0 }];
        while !more.is_empty() && stream.write_all(&more).is_ok() {}
    });
    (address, server)
}

/// A form in which column `x` is a field of an entry or of a JSON object.
pub(super) fn form(format: Format) -> EntryParser {
    EntryParser::new(&RowLayout { format, header: None, wanted: vec!["x".into()] }, "s".as_ref()).unwrap()
}

fn pipeline(source: &str, sinks: &str) -> Result<Pipeline, String> {
    let text = format!(
        "name = 'n'\nsource = {{ {source} }}\ncolumns = [{{ name = 'x', lower = 0, upper = 1 }}]
        privacy = {{ epsilon = 1, delta = 1e-6 }}\nepochs = {{ records = 2, horizon = 9 }}\nsinks = [{sinks}]"
    );
    Pipeline::parse(&text, "dir/p.toml".as_ref()).map_err(|error| error.to_string())
}

/// Parses a source with these fields.
pub(super) fn source_of(fields: &str) -> Result<Source, String> {
    Ok(pipeline(fields, "")?.sources.remove(0))
}

/// Parses a sink with these fields.
pub(super) fn sink_of(fields: &str) -> Result<Sink, String> {
    Ok(pipeline("path = 'a.csv'", &format!("{{ {fields} }}"))?.sinks.remove(0))
}
